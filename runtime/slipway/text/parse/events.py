"""What parsers tell of an output, in its order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that led there."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool; what follows of it comes before the next one's begin."""

    name: str
    id: str | None = None
    """Where the model writes one itself."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the latest call's arguments: joined, a JSON object as text."""

    text: str


Event = Content | Reasoning | CallBegin | Arguments


def joined(events: list[Event]) -> list[Event]:
    """The same with neighbours of one kind made one: what a client sees at the end."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, CallBegin) or type(last) is not type(event):
            found.append(event)
        else:
            found[-1] = type(event)(last.text + event.text)
    return found
