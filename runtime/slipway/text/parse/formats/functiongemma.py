"""FunctionGemma: unquoted keys, and strings between tokens.

<start_function_call>call:f{city:<escape>Berlin<escape>,days:3}<end_function_call>
"""

from __future__ import annotations

import json
import re

from slipway.text.parse.calls import CallFormat, Section
from slipway.text.parse.json_text import MAX_DEPTH
from slipway.text.parse.reader import Broken, Emit, Reader, Reading
from slipway.text.parse.shapes import Call

_QUOTE = "<escape>"
_NAME = re.compile(r"[\w.\-]*")
_WORD = re.compile(r"[\w.+\-]*")


def _call(reader: Reader, call: Call) -> Reading[None]:
    yield from reader.expect("call:")
    name = yield from reader.match(_NAME)
    if not name or (yield from reader.peek()) != "{":
        raise Broken("no function is called")
    call.begin(name)
    yield from _read(reader, call.arguments, 0)


def _read(reader: Reader, emit: Emit, depth: int) -> Reading[None]:
    """A value, as JSON."""
    first = yield from reader.peek()
    if depth > MAX_DEPTH:
        raise Broken("the value nests too deep")
    if first in ("{", "["):
        yield from _read_members(reader, emit, "}" if first == "{" else "]", depth)
    elif (yield from reader.take(_QUOTE)):
        emit('"')
        ended = yield from reader.until(
            (_QUOTE,), lambda text: emit(json.dumps(text, ensure_ascii=False)[1:-1])
        )
        if ended is None:
            raise Broken("the text ends in a string")
        emit('"')
    else:
        word = yield from reader.match(_WORD)
        try:
            emit(json.dumps(json.loads(word), allow_nan=False))
        except ValueError:
            raise Broken(f"{word[:40]!r} is no value") from None


def _read_members(reader: Reader, emit: Emit, end: str, depth: int) -> Reading[None]:
    emit((yield from reader.peek()))
    reader.at += 1
    between = ""
    while True:
        yield from reader.skip_space()
        if (yield from reader.take(end)):
            emit(end)
            return
        if between:
            yield from reader.expect(",")
            yield from reader.skip_space()
        emit(between)
        between = ", "
        if end == "}":
            key = yield from reader.match(_NAME)
            yield from reader.expect(":")
            emit(f"{json.dumps(key)}: ")
            yield from reader.skip_space()
        yield from _read(reader, emit, depth + 1)


FORMATS = {
    "functiongemma": CallFormat(
        ("<start_function_call>",), (Section(_call, end="<end_function_call>"),), tokens=(_QUOTE,)
    )
}
