"""Calls outside a format's marks: in a code fence, between the tags of another format, or as bare JSON.

```json
{"name": "f", "arguments": {}}
```

Small models write calls so. llama.cpp reads them, too; here only those of a request's own tools, with their
arguments, are calls, and no example of one within a line or other code. All of a call is read before any
of it is told, so that what is none stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipway.text.parse.json_text import kept_value, read_value
from slipway.text.parse.reader import Broken, Reader, Reading
from slipway.text.parse.shapes import JsonCall, Tools

FENCE = "```"
_THOUGHT = "</think>"
_NAMES = ("tool_call", "tool_calls", "tools", "tool", "function_call", "function_calls", "response")
_WORDS = (*_NAMES, "json", "JSON", "xml")
TAGS = tuple(f"<{word}>" for word in _WORDS)
CLOSES = tuple(f"</{word}>" for word in (*_WORDS, "function"))
_FUNCTION = {"<function=": ">", '<function name="': '">'}
"""What stands before a function's name, and behind it; its arguments follow."""
OPENS = (FENCE, *TAGS, *_FUNCTION, "{", "[")
"""Any of these in free text may begin a call."""

_CALL = JsonCall(needs_arguments=True, whole=True)
_LANGUAGES = frozenset(("", "json", "xml", *_NAMES, "tool_code"))
"""Of fences in which other text may stand behind a call. A fence of any other holds calls alone."""
_LANGUAGE = re.compile(r"[\w+-]*")
_FUNCTION_NAME = re.compile(r"[^\s<>{}()\"]*")
_MOST_OPENS = 4
"""Tags and fences, one in another, that may stand before a call."""


@dataclass(slots=True)
class Surroundings:
    """What stands in front of the next character, as far as it says whether a call may begin there."""

    fence: int = 0
    """How many backticks began the fence of text that is open, if one is."""
    in_code: bool = False
    """A backtick on this line has no other one yet."""
    _line: str = ""
    """The last characters of this line, without white space."""

    def add(self, text: str) -> None:
        """More text, that is no call."""
        _, line_end, rest = text.rpartition("\n")
        if line_end:
            self.begin_line()
        self.in_code ^= rest.count("`") % 2 == 1
        self._line = (self._line + "".join(rest.split()))[-len(_THOUGHT) :]

    def begin_line(self) -> None:
        """A line begins, or a call has ended."""
        self.in_code, self._line = False, ""

    def allow(self, first: str) -> bool:
        """Whether a call may begin here with this character."""
        if self.fence or self.in_code:
            return False
        return first not in ("{", "[") or not self.behind_words

    @property
    def behind_words(self) -> bool:
        """Whether there is more than white space in this line, or behind reasoning in it."""
        return self._line not in ("", _THOUGHT)


@dataclass(slots=True)
class KeptCall:
    """A call that has been read whole."""

    tools: Tools
    name: str = ""
    id: str | None = None
    parts: list[str] = field(default_factory=list)
    """Of its arguments."""

    def begin(self, name: str, id: str | None = None) -> None:
        if name not in self.tools:
            raise Broken(f"there is no tool {name!r}")
        self.name, self.id = name, id

    def arguments(self, text: str) -> None:
        self.parts.append(text)


def read_loose(
    reader: Reader, tools: Tools, opens: Sequence[str], closes: Sequence[str], *, behind_words: bool
) -> Reading[list[KeptCall]]:
    """The calls that begin here, and all that stands round them. Raises Broken where there is none.

    opens         tags of the format, beside those of others
    closes        what ends them
    behind_words  other text is in front in this line: a fence that does not end its line is code in it
    """
    language, tagged = yield from _read_opens(reader, (*opens, *TAGS), behind_words=behind_words)
    fenced = language is not None
    calls = yield from _read_calls(reader, tools)
    while True:
        fenced = yield from _read_closes(reader, (*closes, *CLOSES), fenced)
        end = reader.at
        yield from reader.skip_space()
        separated = yield from reader.take_one((",", ";"))
        yield from reader.skip_space()
        following = yield from reader.peek()
        if not (fenced or tagged or separated) or following not in ("{", "["):
            break
        try:
            calls += yield from _read_calls(reader, tools)
        except Broken:
            break
    reader.at = end
    if fenced and language not in _LANGUAGES:
        yield from reader.skip_space()
        if (yield from reader.peek()):
            raise Broken("a fence of code has other text behind the call")
        reader.at = end
    return calls


def _read_opens(
    reader: Reader, tags: Sequence[str], *, behind_words: bool
) -> Reading[tuple[str | None, bool]]:
    """The language of the fence that is open, None without one; and whether a tag is open."""
    language, tagged = None, False
    for _ in range(_MOST_OPENS):
        if language is None and (yield from reader.take(FENCE)):
            language = (yield from reader.match(_LANGUAGE)).lower()
            place = reader.at
            yield from reader.skip_space()
            if behind_words and "\n" not in reader.text[place : reader.at]:
                raise Broken("this is code within a line")
        elif (yield from reader.take_one(tags)) is not None:
            tagged = True
        else:
            break
        yield from reader.skip_space()
    return language, tagged


def _read_closes(reader: Reader, closes: Sequence[str], fenced: bool) -> Reading[bool]:
    """Skip what ends fences and tags, but no white space behind. Whether the fence is still open."""
    while True:
        end = reader.at
        yield from reader.skip_space()
        if (yield from reader.take_one(closes)) is not None:
            continue
        if fenced and (yield from reader.take(FENCE)):
            behind = yield from reader.peek()
            if not behind.isalnum():  # a language would begin another fence
                fenced = False
                continue
        reader.at = end
        return fenced


def _read_calls(reader: Reader, tools: Tools) -> Reading[list[KeptCall]]:
    """One call, or a list of them."""
    if not (yield from reader.take("[")):
        return [(yield from _read_call(reader, tools))]
    calls: list[KeptCall] = []
    while True:
        yield from reader.skip_space()
        calls.append((yield from _read_call(reader, tools)))
        yield from reader.skip_space()
        if (yield from reader.take("]")):
            return calls
        yield from reader.expect(",")


def _read_call(reader: Reader, tools: Tools) -> Reading[KeptCall]:
    call = KeptCall(tools)
    begin = yield from reader.take_one(tuple(_FUNCTION))
    if begin is not None:
        call.begin((yield from reader.match(_FUNCTION_NAME)))
        yield from reader.expect(_FUNCTION[begin])
        yield from reader.skip_space()
        if (yield from reader.peek()) != "{":
            raise Broken("arguments are an object")
        yield from read_value(reader, call.arguments)
    else:
        yield from _read_object(reader, call)
    return call


def _read_object(reader: Reader, call: KeptCall) -> Reading[None]:
    """`{"name": …, "arguments": …}`, also as the `function` of an object, as in the chat API.

    Any other object is recognized at its first key, or at a name that is none of the tools.
    """
    start = reader.at
    yield from reader.expect("{")
    key = yield from _take_key(reader, ('"name"', '"arguments"', '"parameters"', '"type"', '"function"'))
    if key == '"type"':
        yield from reader.expect('"function"')
        yield from reader.skip_space()
        yield from reader.expect(",")
        key = yield from _take_key(reader, ('"name"', '"function"'))
    if key == '"name"':
        call.begin(str((yield from kept_value(reader))))
    if key != '"function"' or (yield from reader.peek()) != "{":
        reader.at = start
        yield from _CALL(reader, call)
        return
    yield from _CALL(reader, call)
    while True:
        yield from reader.skip_space()
        if (yield from reader.take("}")):
            return
        yield from reader.expect(",")
        yield from _take_key(reader, ('"type"', '"id"', '"index"'))
        yield from kept_value(reader)


def _take_key(reader: Reader, keys: Sequence[str]) -> Reading[str]:
    """Which of these keys is next; the place is before its value then."""
    yield from reader.skip_space()
    key = yield from reader.take_one(keys)
    if key is None:
        raise Broken("this is another object")
    yield from reader.skip_space()
    yield from reader.expect(":")
    yield from reader.skip_space()
    return key
