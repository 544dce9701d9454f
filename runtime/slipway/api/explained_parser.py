"""What a parser makes of an output, for the log at the level DEBUG, and no word of the output."""

from __future__ import annotations

import logging
from collections.abc import Callable

from slipway.text.parse.events import Arguments, CallBegin, Content, Event, Reasoning
from slipway.text.parse.output import Parser

log = logging.getLogger("slipway.api.parsers")


def explained(make: Callable[[], Parser], request_id: str) -> Callable[[], Parser]:
    """What makes the parsers of a request, which say what they find where the log takes it."""
    return (lambda: ExplainedParser(make(), request_id)) if log.isEnabledFor(logging.DEBUG) else make


class ExplainedParser:
    """As the parser; each change of what the output is has a line, and so has its end."""

    def __init__(self, parser: Parser, request_id: str) -> None:
        self._parser = parser
        self._id = request_id
        self._now = ""
        self._length = 0
        """Characters of what it is now."""
        log.debug("request %s: its output is read by %s", request_id, parser)

    @property
    def broken_off(self) -> str | None:
        return self._parser.broken_off

    def push(self, text: str) -> list[Event]:
        return self._seen(self._parser.push(text))

    def finish(self) -> list[Event]:
        events = self._seen(self._parser.finish())
        self._turn("")
        if self.broken_off is not None:
            log.debug("request %s: the output ends within a call", self._id)
        return events

    def _seen(self, events: list[Event]) -> list[Event]:
        for event in events:
            match event:
                case Content(text):
                    self._grow("content", text)
                case Reasoning(text):
                    self._grow("reasoning", text)
                case CallBegin(name):
                    self._turn("")
                    self._turn(f"arguments of a call of {name}")
                case Arguments(text):
                    self._length += len(text)
        return events

    def _grow(self, what: str, text: str) -> None:
        if what != self._now:
            self._turn(what)
        self._length += len(text)

    def _turn(self, what: str) -> None:
        """What the output was has ended."""
        if self._now:
            log.debug("request %s: %d characters of %s", self._id, self._length, self._now)
        self._now, self._length = what, 0
