"""Names of an object's members: which patterns have few names, and how all others are said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from slipway.text.errors import GrammarError

MOST_NAMES = 256
"""Of a pattern that is written as the names that it matches."""
LONGEST_NAME = 48
"""Characters by which names are told apart: each nests a regular expression by one level."""

MAX_DEPTH = 32
"""Of groups in a pattern that is read."""
MAX_CHARACTERS = 100_000
"""That reading one pattern writes; it takes 10 ms."""

_DIGITS = frozenset("0123456789")
_WORD = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_CONTROL = r"\x00-\x1f"
"""llguidance reads a class with these as one with the quote and the backslash, too."""
_ANY = f"[^{_CONTROL}]"
_SPACES = r"\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
"""Of ECMA-262's white space what is no control character: Rust's has U+0085 and lacks U+FEFF."""
_OF_ECMA = {
    ".": r"[^\n\r\x{2028}\x{2029}]",
    "\\s": rf"[\t-\r{_SPACES}]",
    "\\S": f"[^{_CONTROL}{_SPACES}]",
}
"""What means something else in Rust, outside of classes."""
_OPERATORS = ("[", "]", "&", "-", "~")
"""Of Rust's classes, in some places; characters where they are escaped."""
_CLASS_ESCAPES = frozenset(("\\d", "\\D", "\\p", "\\P", "\\s", "\\S", "\\w", "\\W"))
_ATOM = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[xupP]\{[^}]{0,64}\}|.)|.", re.DOTALL)
_META = frozenset("\\^$.|?*+()[]{}")


class _Unknown(Exception):
    """The expression is of a kind that is not read here, or has too many texts."""


def names_of(pattern: str, spend: Callable[[int], None] = lambda characters: None) -> list[str] | None:
    """The names that a regular expression matches; None where they are many, or it is not read here.

    spend  takes the number of characters that were read and written for it
    """
    reading = _Reading(pattern)
    try:
        return sorted(reading.whole())
    except _Unknown:
        return None
    finally:
        spend(len(pattern) + reading.characters)


def all_but(names: Iterable[str], prefixes: Iterable[str] = ()) -> str:
    """A regular expression of every other name that begins with none of the prefixes.

    Names that share LONGEST_NAME characters with one of these are left out, too.
    """
    root: dict[str, object] = {}
    for text, ends in [*((name, True) for name in names), *((prefix, False) for prefix in prefixes)]:
        node = root
        for char in text[:LONGEST_NAME]:
            node = node.setdefault(char, {})  # type: ignore[assignment]
        node["end" if ends and len(text) <= LONGEST_NAME else "dead"] = True
    return f"^(?:{_others(root)})$"


def rust_pattern(pattern: str) -> str:
    """A regular expression of ECMA-262 in Rust's syntax: in classes `[`, `&&`, `--` and `~~` are characters.

    Negated classes have no control characters then. Raises GrammarError for an empty class.
    """
    found, place = [], 0
    while place < len(pattern):
        if pattern[place] != "[":
            step = 2 if pattern[place] == "\\" else 1
            atom = pattern[place : place + step]
            found.append(_OF_ECMA.get(atom, atom))
            place += step
            continue
        if pattern.startswith(("[]", "[^]"), place):
            raise GrammarError("a pattern has the empty class [] or [^]; in place of [^] say [\\s\\S]")
        negated = pattern.startswith("[^", place)
        found.append(f"[^{_CONTROL}" if negated else "[")
        place += 2 if negated else 1
        while place < len(pattern) and pattern[place] != "]":
            atom = _atom_at(pattern, place)
            place += len(atom)
            found.append(_in_class(atom))
            if pattern.startswith("-", place) and atom[:2] not in _CLASS_ESCAPES:
                last = _atom_at(pattern, place + 1)
                if last and last != "]" and last[:2] not in _CLASS_ESCAPES:
                    found.append("-" + _in_class(last))
                    place += 1 + len(last)
    return "".join(found)


def _atom_at(pattern: str, place: int) -> str:
    """A character of a class, or what stands for one or several."""
    found = _ATOM.match(pattern, place)
    return found.group() if found else ""


def _in_class(atom: str) -> str:
    if atom == "\\s":
        return rf"\t-\r{_SPACES}"
    if atom == "\\S":
        return r"\S\x{85}"
    return f"\\{atom}" if atom in _OPERATORS else atom


def beginning(pattern: str) -> str:
    """The text with which every name begins that a pattern matches, as far as it is read here."""
    if not pattern.startswith("^") or "|" in pattern:
        return ""
    plain = re.match(r"\^((?:[A-Za-z0-9_\- ]|\\[.\-/])*)", pattern)
    text = plain.group(1) if plain else ""
    rest = pattern[1 + len(text) :]
    if rest[:1] in ("?", "*", "{"):  # of the last character
        text = text[: -2 if text[-2:-1] == "\\" else -1]
    return re.sub(r"\\(.)", r"\1", text)


def _others(node: dict[str, object]) -> str:
    """The continuations behind a prefix of names that make none of them."""
    if "dead" in node:
        return "[a&&b]"  # no text
    children = {key: each for key, each in node.items() if len(key) == 1}
    parts = [] if "end" in node else [""]
    excluded = "".join(map(_escaped, children))
    parts.append(f"[^{excluded}{_CONTROL}]{_ANY}*" if excluded else f"{_ANY}+")
    for char, child in children.items():
        if "dead" not in child:  # type: ignore[operator]
            parts.append(f"{_escaped(char)}(?:{_others(child)})")  # type: ignore[arg-type]
    return "|".join(parts)


def _escaped(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


class _Reading:
    """The texts of an expression of literals, classes, groups and counts, between `^` and `$`."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._depth = 0
        self.characters = 0

    def whole(self) -> set[str]:
        found = self._anchored()
        while self._took("|"):
            found = self._both(found, self._anchored())
        if self._place < len(self._pattern):
            raise _Unknown
        return found

    def _anchored(self) -> set[str]:
        if not self._took("^"):
            raise _Unknown
        found = self._sequence()
        if not self._took("$"):
            raise _Unknown
        return found

    def _either(self) -> set[str]:
        found = self._sequence()
        while self._took("|"):
            found = self._both(found, self._sequence())
        return found

    def _sequence(self) -> set[str]:
        found = {""}
        while self._place < len(self._pattern) and self._pattern[self._place] not in "|)$":
            one = self._atom()
            least, most = self._count()
            found = self._joined(found, self._repeated(one, least, most))
        return found

    def _atom(self) -> set[str]:
        if self._took("(?:") or self._took("("):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise _Unknown
            found = self._either()
            if not self._took(")"):
                raise _Unknown
            self._depth -= 1
            return found
        if self._took("["):
            return self._class()
        char = self._next()
        if char == "\\":
            return self._escape()
        if char in _META:
            raise _Unknown
        return {char}

    def _class(self) -> set[str]:
        found: set[str] = set()
        while not self._took("]"):
            char = self._next()
            if char in "[^&~" or (char == "-" and found and not self._pattern.startswith("]", self._place)):
                raise _Unknown
            some = self._escape() if char == "\\" else {char}
            if len(some) == 1 and re.compile(r"-[^\]]").match(self._pattern, self._place):
                self._place += 1
                last = self._next()
                if last in "[\\]" or ord(last) - ord(min(some)) > MOST_NAMES:
                    raise _Unknown
                some = {chr(code) for code in range(ord(min(some)), ord(last) + 1)}
            found |= some
        if not found:
            raise _Unknown
        return _few(found)

    def _escape(self) -> set[str]:
        char = self._next()
        if char in "dw":
            return set(_DIGITS if char == "d" else _WORD)
        if char.isalnum() or not char.isascii():
            raise _Unknown
        return {char}

    def _count(self) -> tuple[int, int]:
        if self._took("?"):
            counts = 0, 1
        elif counted := re.compile(r"\{(\d{1,3})(?:,(\d{1,3}))?\}").match(self._pattern, self._place):
            self._place = counted.end()
            counts = int(counted.group(1)), int(counted.group(2) or counted.group(1))
        else:
            return 1, 1
        if self._pattern[self._place : self._place + 1] in ("?", "+", "*", "{"):
            raise _Unknown
        return counts

    def _took(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._place):
            return False
        self._place += len(text)
        return True

    def _next(self) -> str:
        if self._place == len(self._pattern):
            raise _Unknown
        self._place += 1
        return self._pattern[self._place - 1]

    def _both(self, firsts: set[str], seconds: set[str]) -> set[str]:
        self._spend(len(firsts) + len(seconds))
        return _few(firsts | seconds)

    def _joined(self, firsts: set[str], seconds: set[str]) -> set[str]:
        number = len(firsts) * len(seconds)
        if number > 4 * MOST_NAMES:
            raise _Unknown
        self._spend(number * (max(map(len, firsts), default=0) + max(map(len, seconds), default=0) + 1))
        return _few({first + second for first in firsts for second in seconds})

    def _repeated(self, texts: set[str], least: int, most: int) -> set[str]:
        if least > most or most > MOST_NAMES:
            raise _Unknown
        found, last = ({""} if least == 0 else set()), {""}
        for count in range(1, most + 1):
            last = self._joined(last, texts)
            found |= last if count >= least else set()
        return _few(found)

    def _spend(self, characters: int) -> None:
        self.characters += characters
        if self.characters > MAX_CHARACTERS:
            raise _Unknown


def _few(texts: set[str]) -> set[str]:
    if len(texts) > MOST_NAMES:
        raise _Unknown
    return texts
