"""What parsers have in common: a generator that reads, and the events it has told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from slipway.text.parse.events import Event
from slipway.text.parse.reader import Reader, Reading


class Incremental(ABC):
    """Reads one output as it arrives."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._events: list[Event] = []
        self._unread: list[str] = []
        """What came behind the end of what could be read."""
        self._running: Iterator[None] | None = self._read()

    def push(self, text: str) -> list[Event]:
        """What more text tells."""
        if self._running is None:
            self._unread.append(text)
            return []
        self._reader.feed(text)
        return self._go_on()

    def finish(self) -> list[Event]:
        """The rest; the output is over."""
        self._reader.over = True
        return self._go_on()

    @abstractmethod
    def _read(self) -> Reading[None]:
        """The whole output."""

    def _go_on(self) -> list[Event]:
        if self._running is not None and next(self._running, self) is self:
            self._running = None
        events, self._events = self._events, []
        return events
