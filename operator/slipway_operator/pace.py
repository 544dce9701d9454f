"""Which status is written next: so many a second for all services together, and what matters most first.

While hundreds of models load, each of their statuses changes every few seconds, by a percentage alone. A
status that has to wait is not kept: its service is reconciled again when its turn comes, and what is then
true is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from itertools import takewhile

from slipway_operator.informer import Key
from slipway_operator.shapes import Object

A_SECOND = 18
"""Writes in any second, as they are sent: 500 services that load are through in less than 30 s. Not 20, since
what is sent late in one second may arrive early in the next: at 19 the API server has seen 21."""
A_QUARTER = 5
"""Of these in any quarter of a second: whoever cannot wait finds room soon."""
AGE = 30.0
"""Seconds for which it counts when a status was written: after these all that changes are through."""
LAPSE = 60.0
"""Seconds after which a turn that nobody took is given to another: its service may be gone."""


def only_words_differ(before: Object, after: Object) -> bool:
    """Whether no condition has another status or reason, and nothing else changed that a program reads."""
    return _without_words(before) == _without_words(after)


def _without_words(status: Object) -> Object:
    conditions = [
        {name: value for name, value in condition.items() if name != "message"}
        for condition in status.get("conditions") or ()
    ]
    return {**status, "summary": None, "conditions": conditions}


class Pace:
    """Belongs to one event loop.

    Invariant: writes of the last second and turns that nobody has taken yet are together at most A_SECOND.
    """

    def __init__(self, wake: Callable[[Key], None], clock: Callable[[], float] = time.monotonic) -> None:
        """wake  called with each service whose turn has come: it asks `admits` again"""
        self._wake = wake
        self._clock = clock
        self._recent: deque[float] = deque()
        """When statuses were written in the last second."""
        self._written: dict[Key, float] = {}
        """When the status of each service was last written, the oldest first; of the last AGE seconds."""
        self._turns: dict[Key, float] = {}
        """Services whose turn has come, and when it did."""
        self._urgent: dict[Key, None] = {}
        self._patient: dict[Key, None] = {}
        self._waiting = asyncio.Event()

    def admits(self, key: Key, urgent: bool) -> bool:
        """Whether the status may be written now, which counts as done. If not, the service waits its turn.

        urgent  more than words differ
        """
        now = self._clock()
        ahead = self._urgent.keys() if urgent else self._urgent.keys() | self._patient.keys()
        if key in self._turns or (self._wait(now) <= 0 and not ahead - {key}):
            self.clear(key)
            self._recent.append(now)
            self._written.pop(key, None)
            self._written[key] = now
            return True
        mine, other = (self._urgent, self._patient) if urgent else (self._patient, self._urgent)
        other.pop(key, None)
        mine.setdefault(key)
        self._waiting.set()
        return False

    def clear(self, key: Key) -> None:
        """The service's status is as it should be: it waits for nothing."""
        self._urgent.pop(key, None)
        self._patient.pop(key, None)
        if self._turns.pop(key, None) is not None:
            self._waiting.set()

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self.clear(key)
        self._written.pop(key, None)

    def expected(self, key: Key) -> float:
        """Seconds until another change of words may be written, if all go on as they do."""
        now = self._clock()
        for old in [*takewhile(lambda one: self._written[one] + AGE <= now, self._written)]:
            del self._written[old]
        return max(self._written_at(key) + len(self._written) / A_SECOND - now, 0.0)

    def give_turns(self) -> float | None:
        """Wake whose turn has come; in how many seconds the next one may come. None: nobody waits."""
        now = self._clock()
        while self._urgent or self._patient:
            if (wait := self._wait(now)) > 0:
                return wait
            key = next(iter(self._urgent), None) or min(self._patient, key=self._written_at)
            self.clear(key)
            self._turns[key] = now
            self._wake(key)
        return None

    async def keep(self) -> None:
        """Give turns, for good."""
        while True:
            self._waiting.clear()
            wait = self.give_turns()
            # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._waiting.wait()

    def _wait(self, now: float) -> float:
        """Seconds until there is room; 0 or less: there is."""
        while self._recent and self._recent[0] + 1.0 <= now:
            self._recent.popleft()
        for key in [key for key, since in self._turns.items() if since + LAPSE <= now]:
            del self._turns[key]
        turns = self._turns.values()
        begins = sorted((*self._recent, *turns))
        ends = [*(written + 1.0 for written in self._recent), *(since + LAPSE for since in turns)]
        if len(ends) >= A_SECOND:
            return min(ends) - now
        return begins[-A_QUARTER] + 0.25 - now if len(begins) >= A_QUARTER else 0.0

    def _written_at(self, key: Key) -> float:
        return self._written.get(key, float("-inf"))
