"""Where the words and variables of a container come from: each is made together with its origin.

What renders takes the values, and `slipway explain` prints both, so that the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Source(StrEnum):
    """Who decides a value."""

    DOCUMENT = "document"
    """It stands there."""
    PROFILE = "profile"
    """Its field stands in the ServingProfile that the document chooses."""
    DERIVED = "derived"
    """It follows from a field that says something else."""
    OPERATOR = "operator"
    """It is the same for every document."""
    DEFAULT = "default"
    """Nobody gives it: it is the server's own."""


@dataclass(frozen=True, slots=True)
class Origin:
    """`field` is where a document says it, such as spec.engine.maxModelLen; nothing of what is fixed."""

    source: Source
    field: str = ""
    why: str = ""
    """The rest of a sentence; nothing where the field says the value itself."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One argument as it stands on the command line: a flag with its values, or values alone."""

    argument: str
    """With underscores; nothing where the words are no argument."""
    words: tuple[str, ...]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Entry:
    """One environment variable, as Kubernetes has it in `env`."""

    env: dict[str, Any]
    origin: Origin

    @property
    def name(self) -> str:
        return str(self.env["name"])


def said(field: str) -> Origin:
    """The field has the value itself."""
    return Origin(Source.DOCUMENT, field)


def derived(field: str, why: str) -> Origin:
    return Origin(Source.DERIVED, field, why)


def fixed(why: str) -> Origin:
    return Origin(Source.OPERATOR, why=why)


def words_of(settings: Iterable[Setting]) -> list[str]:
    """The command line that they make."""
    return [word for setting in settings for word in setting.words]
