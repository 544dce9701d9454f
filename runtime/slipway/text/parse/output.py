"""One output, from its text to reasoning, content and calls."""

from __future__ import annotations

from typing import Protocol

from slipway.text.parse.events import Arguments, CallBegin, Content, Event, Reasoning, joined
from slipway.text.parse.incremental import Incremental


class Parser(Protocol):
    """Reads a text as it arrives."""

    @property
    def broken_off(self) -> str | None:
        """The text of a call that the output's end has cut."""

    def push(self, text: str) -> list[Event]:
        """What more text tells."""

    def finish(self) -> list[Event]:
        """The rest; the output is over."""


def parsed(parser: Parser, text: str) -> list[Event]:
    """A whole output; a call that breaks off in it is content."""
    events = parser.push(text) + parser.finish()
    if parser.broken_off is not None:
        last = max(place for place, event in enumerate(events) if isinstance(event, CallBegin))
        events[last:] = [Content(parser.broken_off)]
    return joined(events)


class Plain:
    """All of it is content."""

    broken_off = None

    def __str__(self) -> str:
        return "no other parser"

    def push(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self) -> list[Event]:
        return []


class NamedCall:
    """All of it is the arguments of one call."""

    broken_off = None

    def __init__(self, name: str) -> None:
        self._begin: list[Event] = [CallBegin(name)]

    def __str__(self) -> str:
        return "the parser of a forced call"

    def push(self, text: str) -> list[Event]:
        begin, self._begin = self._begin, []
        return [*begin, Arguments(text)] if text else begin

    def finish(self) -> list[Event]:
        return self.push("")


class FirstCall:
    """Of several calls the first alone is told, to a client that takes one at a time."""

    def __init__(self, answer: Parser) -> None:
        self._answer = answer
        self._num_calls = 0

    def __str__(self) -> str:
        return f"{self._answer}, which tells the first call alone"

    @property
    def broken_off(self) -> str | None:
        return self._answer.broken_off if self._num_calls <= 1 else None

    def push(self, text: str) -> list[Event]:
        return [event for event in self._answer.push(text) if self._is_told(event)]

    def finish(self) -> list[Event]:
        return [event for event in self._answer.finish() if self._is_told(event)]

    def _is_told(self, event: Event) -> bool:
        self._num_calls += isinstance(event, CallBegin)
        return self._num_calls <= 1 or isinstance(event, Content | Reasoning)


class Reasoned:
    """Reasoning first; what is none is read by another."""

    def __init__(self, reasoning: Incremental, answer: Parser, *, kept: bool = False) -> None:
        """kept  reasoning is told as content, of which the other one reads nothing"""
        self._reasoning = reasoning
        self._answer = answer
        self._kept = kept

    def __str__(self) -> str:
        return f"{self._reasoning}, then {self._answer}"

    @property
    def broken_off(self) -> str | None:
        return self._answer.broken_off

    def push(self, text: str) -> list[Event]:
        return self._passed_on(self._reasoning.push(text))

    def finish(self) -> list[Event]:
        return self._passed_on(self._reasoning.finish()) + self._answer.finish()

    def _passed_on(self, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if isinstance(event, Content):
                found += self._answer.push(event.text)
            elif isinstance(event, Reasoning) and self._kept:
                found.append(Content(event.text))
            else:
                found.append(event)
        return found
