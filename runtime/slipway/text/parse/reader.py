"""Reading a text that still arrives: a format is a generator and waits where the next character is missing.

So what comes of a text cannot depend on how it was cut: no decision is taken on less than it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Each `yield` waits for more text, or for the end."""
Emit = Callable[[str], None]

LONGEST_RUN = 4096
"""Characters of a name or a number. It is looked at whole each time that more of it comes."""
_SPACE = re.compile(r"\s*")


class Broken(Exception):
    """The text is not of the format, or ends within it."""


class Reader:
    """The text so far and the place in it. All methods that may wait are generators."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self._start = 0
        """What stands in front of this place is needed no more."""
        self.over = False
        """No more will come."""
        self.passing = False
        """What has been read is needed no more and goes when more comes: long outputs cost what is new."""

    def feed(self, text: str) -> None:
        """More has arrived. Unless it is passing, what has been read is forgotten by `forget` alone."""
        if self.passing:
            self.forget()
        self.text += text

    def forget(self) -> None:
        """Keep nothing of what has been read. Places from before are not valid any more."""
        self._start = self.at
        if 2 * self.at >= len(self.text):  # copying what is left costs no more than reading the rest did
            self.text, self.at, self._start = self.text[self.at :], 0, 0

    @property
    def kept(self) -> str:
        """The text that has been read and is not forgotten."""
        return self.text[self._start : self.at]

    @property
    def unforgotten(self) -> str:
        """All text from there on, whether it has been read or not."""
        return self.text[self._start :]

    def go_back(self, count: int = 0) -> None:
        """To where `forget` was last called, or so many characters behind it."""
        self.at = self._start + count

    def peek(self, count: int = 1) -> Reading[str]:
        """The next characters, fewer only at the end."""
        while len(self.text) - self.at < count and not self.over:
            yield
        return self.text[self.at : self.at + count]

    def skip_space(self) -> Reading[None]:
        while True:
            found = _SPACE.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text) or self.over:
                return
            yield

    def take(self, literal: str) -> Reading[bool]:
        """Whether the literal is next; it is read then, and waited for no longer than it may still come."""
        while True:
            have = self.text[self.at : self.at + len(literal)]
            if have == literal:
                self.at += len(literal)
                return True
            if self.over or not literal.startswith(have):
                return False
            yield

    def take_one(self, literals: Sequence[str]) -> Reading[str | None]:
        """Which of these is next, the longest; None where none is."""
        while True:
            rest = self.text[self.at : self.at + max(map(len, literals), default=0)]
            open_ = [one for one in literals if len(one) > len(rest) and one.startswith(rest)]
            if not open_ or self.over:
                found = max((one for one in literals if rest.startswith(one)), key=len, default=None)
                self.at += len(found or "")
                return found
            yield

    def expect(self, literal: str) -> Reading[None]:
        """Raises Broken where something else comes."""
        if not (yield from self.take(literal)):
            raise Broken(f"{literal!r} is missing")

    def until(self, literals: Sequence[str], emit: Emit) -> Reading[str | None]:
        """Emit the text in front of the first of these literals and read that, too; None at the end."""
        literal = yield from self.before(literals, emit)
        self.at += len(literal or "")
        return literal

    def before(self, literals: Sequence[str], emit: Emit) -> Reading[str | None]:
        """Emit the text in front of the first of these literals, which is next then; None at the end.

        Of literals that begin at one place it is the longest.
        """
        literals = tuple(literals)
        pattern, longest = _any_of(literals)
        while True:
            found = pattern.search(self.text, self.at)
            place, literal = (found.start(), found[0]) if found else (len(self.text), "")
            decided = self.over or place <= len(self.text) - longest
            begun = len(self.text) if decided else self._begun(literals, longest)
            certain = min(place, begun)
            emit(self.text[self.at : certain])
            self.at = certain
            if literal and place < begun:
                return literal
            if self.over:
                return None
            yield

    def run(self, pattern: re.Pattern[str], emit: Emit) -> Reading[None]:
        """Emit the characters of a pattern that come, as they come."""
        while True:
            found = pattern.match(self.text, self.at)
            if found:
                emit(found[0])
                self.at = found.end()
            if self.at < len(self.text) or self.over:
                return
            yield

    def match(self, pattern: re.Pattern[str]) -> Reading[str]:
        """The longest text of a pattern whose every beginning is one, too: a run of letters, or none.

        Raises Broken for one that no model means.
        """
        while True:
            found = pattern.match(self.text, self.at)
            end = found.end() if found else self.at
            if end - self.at > LONGEST_RUN:
                raise Broken("a name or number is too long")
            if end < len(self.text) or self.over:
                text = self.text[self.at : end]
                self.at = end
                return text
            yield

    def _begun(self, literals: Sequence[str], longest: int) -> int:
        """The first place at which one of these may begin, of which more has to come."""
        for place in range(max(self.at, len(self.text) - longest + 1), len(self.text)):
            rest = self.text[place:]
            if any(len(one) > len(rest) and one.startswith(rest) for one in literals):
                return place
        return len(self.text)


@lru_cache(maxsize=256)
def _any_of(literals: tuple[str, ...]) -> tuple[re.Pattern[str], int]:
    """What finds the first of these, the longest at one place; and how long they are at most."""
    longest_first = sorted(filter(None, literals), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    return pattern, max(map(len, longest_first), default=1)
