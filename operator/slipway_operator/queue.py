"""Keys that want work: each at most once in the queue, each worked on by at most one worker."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_BACK_OFF = 0.2
LONGEST_BACK_OFF = 120.0
"""Seconds."""


def back_off(failures: int, share: float, longest: float = LONGEST_BACK_OFF) -> float:
    """Seconds to wait after the n-th failure in a row: doubling, with the upper half left to chance.

    share    in [0, 1): what chance says
    longest  where the doubling ends, in seconds
    """
    doubled = 2.0 ** min(failures - 1, 60)  # what is lost for a day would be more than a float holds
    full = min(FIRST_BACK_OFF * doubled, longest)
    return full * (0.5 + 0.5 * share)


class Queue(Generic[Key]):
    """Belongs to one event loop.

    Invariants: a key that is worked on is never given out again before `done`; a key added meanwhile is given
    out once after it; of several times at which a key is wanted the earliest holds.
    """

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._order: list[tuple[float, int, Key]] = []
        self._count = 0
        self._running: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._first: dict[Key, None] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait for a worker now, or are worked on."""
        now = time.monotonic()
        return sum(due <= now for due in self._due.values()) + len(self._running)

    def oldest(self) -> float:
        """Seconds since the longest-waiting key fell due, or since its work began."""
        now = time.monotonic()
        times = [*self._running.values(), *(due for due in self._due.values() if due <= now)]
        return now - min(times, default=now)

    def add(self, key: Key, after: float = 0.0) -> None:
        """Want work on the key in `after` seconds."""
        due = time.monotonic() + after
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._push(key, due)

    def add_first(self, key: Key) -> None:
        """Want work on the key before all others that are due."""
        self.add(key)
        self._first[key] = None
        self._changed.set()

    async def take(self) -> Key:
        """The next due key that nobody works on; `done` must follow."""
        while (key := self._next_first()) is None and ((wait := self._next_wait()) is None or wait > 0):
            self._changed.clear()
            # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
        if key is None:
            _, _, key = heapq.heappop(self._order)
        self._first.pop(key, None)
        del self._due[key]  # what the heap still has of it counts no more
        self._running[key] = time.monotonic()
        return key

    def done(self, key: Key) -> None:
        """The work succeeded."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: Key, longest: float = LONGEST_BACK_OFF) -> float:
        """The work failed: want it again after a back-off of at most `longest` seconds, which is returned."""
        failures = self._failures.get(key, 0) + 1
        if FIRST_BACK_OFF * 2.0 ** (failures - 1) < 2 * longest:  # counting on would change nothing
            self._failures[key] = failures
        wait = back_off(failures, random.random(), longest)
        self._due.pop(key, None)  # an event that came meanwhile does not shorten the back-off
        self._first.pop(key, None)
        self._release(key)
        self.add(key, wait)
        return wait

    def _release(self, key: Key) -> None:
        del self._running[key]
        if key in self._due:
            self._push(key, self._due[key])

    def _push(self, key: Key, due: float) -> None:
        self._count += 1
        heapq.heappush(self._order, (due, self._count, key))
        self._changed.set()

    def _next_first(self) -> Key | None:
        """The first of those that go before all others."""
        return next((key for key in self._first if key not in self._running), None)

    def _next_wait(self) -> float | None:
        """Seconds until the first entry that counts; None where there is none."""
        while self._order:
            due, _, key = self._order[0]
            if self._due.get(key) == due and key not in self._running:
                return due - time.monotonic()
            heapq.heappop(self._order)  # wanted earlier meanwhile, or `done` will push it again
        return None
