"""The lines still to be answered, read ahead of the engine by little, so that any file fits in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from slipway.api.errors import shown_value
from slipway.batch.files import Input
from slipway.batch.lines import Line, Question, Refused, custom_id_of, read_question

AHEAD_LINES = 64
AHEAD_BYTES = 1 << 20
"""Read at once, in a thread."""
OPEN_BYTES = 64 << 20
"""Of lines that are being answered; a longer one is answered alone."""


@dataclass(frozen=True, slots=True)
class Open:
    """A line that is being answered, and what it asks or why that is refused."""

    line: Line
    asks: Question | Refused


class Questions:
    """Gives out lines, from several tasks at once, until `stop`. Whoever took one gives it back."""

    def __init__(self, source: Input, answered: bytearray, paths: Collection[str]) -> None:
        self.num_open = 0
        self._unread = self._read(source, answered, paths)
        self._ahead: deque[Open] = deque()
        self._turn = asyncio.Lock()
        self._given_back = asyncio.Event()
        self._open_bytes = 0
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._given_back.set()

    async def take(self) -> Open | None:
        """The next line, when there is room for it; None where there is none any more."""
        async with self._turn:
            if not self._ahead and not self._stopped:
                self._ahead.extend(await asyncio.to_thread(self._some))
            while self._ahead and not self._stopped:
                size = len(self._ahead[0].line.text)
                if not self.num_open or self._open_bytes + size <= OPEN_BYTES:
                    self.num_open += 1
                    self._open_bytes += size
                    return self._ahead.popleft()
                self._given_back.clear()
                await self._given_back.wait()
            return None

    def give_back(self, taken: Open) -> None:
        self.num_open -= 1
        self._open_bytes -= len(taken.line.text)
        self._given_back.set()

    def _some(self) -> list[Open]:
        some: list[Open] = []
        size = 0
        while len(some) < AHEAD_LINES and size < AHEAD_BYTES and (one := next(self._unread, None)):
            some.append(one)
            size += len(one.line.text)
        return some

    @staticmethod
    def _read(source: Input, answered: bytearray, paths: Collection[str]) -> Iterator[Open]:
        for line, repeats in source.lines(answered):
            try:
                if repeats:
                    name = custom_id_of(line)
                    message = f"Line {line.number}: custom_id {shown_value(name)} is also an earlier line's."
                    raise Refused(message, "custom_id", name)
                yield Open(line, read_question(line, paths))
            except Refused as refused:
                yield Open(line, refused)
