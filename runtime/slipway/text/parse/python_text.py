"""Python's literals read as they arrive, told as JSON."""

from __future__ import annotations

import ast
import json
import re

from slipway.text.parse.json_text import MAX_DEPTH
from slipway.text.parse.reader import Broken, Emit, Reader, Reading

IDENTIFIER = re.compile(r"[^\W\d][\w.\-]*")
"""Names of functions, which may have dots and hyphens."""
_WORD = re.compile(r"[\w.+-]*")
_NUMBER = re.compile(r"[+-]?[\d.][\w.]*([eE][+-]?\d+)?")
"""One number and no more, as Python's reader takes any expression."""
_PLAIN = re.compile(r"[^'\"\\]+")
_CONSTANTS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}


def read_literal(reader: Reader, emit: Emit, depth: int = 0) -> Reading[None]:
    """A string, number, constant, list, tuple or dictionary. Raises Broken for anything else."""
    if depth > MAX_DEPTH:
        raise Broken("the value nests too deep")
    first = yield from reader.peek()
    if first in ("'", '"'):
        yield from _read_string(reader, emit)
    elif first == "[":
        yield from _read_items(reader, emit, "]", depth)
    elif first == "(":
        yield from _read_items(reader, emit, ")", depth)
    elif first == "{":
        yield from _read_members(reader, emit, depth)
    else:
        word = yield from reader.match(_WORD)
        emit(_CONSTANTS[word] if word in _CONSTANTS else _number(word))


def _number(word: str) -> str:
    if not _NUMBER.fullmatch(word):
        raise Broken(f"{word[:40]!r} is no value")
    try:
        return json.dumps(ast.literal_eval(word), allow_nan=False)
    except (ValueError, SyntaxError, TypeError):
        raise Broken(f"{word[:40]!r} is no value") from None


def _read_string(reader: Reader, emit: Emit) -> Reading[None]:
    quote = yield from reader.peek(3)
    quote = quote if quote in ("'''", '"""') else quote[0]
    reader.at += len(quote)
    emit('"')
    while True:
        yield from reader.run(_PLAIN, lambda text: emit(json.dumps(text, ensure_ascii=False)[1:-1]))
        if (yield from reader.take(quote)):
            emit('"')
            return
        char = yield from reader.peek()
        if char == "\\":
            emit((yield from _escape(reader)))
        elif char:
            reader.at += 1
            emit(json.dumps(char)[1:-1])
        else:
            raise Broken("the text ends in a string")


_ESCAPES = {"x": 2, "u": 4, "U": 8}


def _escape(reader: Reader) -> Reading[str]:
    """As Python reads it, and halves of a character as JSON does; what is no escape is its own text."""
    pair = yield from reader.peek(2)
    digits = _ESCAPES.get(pair[1:], 0)
    whole = yield from reader.peek(2 + digits)
    if len(whole) < 2 + digits or len(pair) < 2:
        raise Broken("the text ends in an escape")
    reader.at += len(whole)
    if digits == 4 and _is_half(whole, 0xD800):
        other = yield from reader.peek(6)
        if not _is_half(other, 0xDC00):
            raise Broken("half a character")
        reader.at += len(other)
        return json.dumps(json.loads(f'"{whole}{other}"'), ensure_ascii=False)[1:-1]
    try:
        char = ast.literal_eval(f'"{whole}"')
        char.encode()
    except UnicodeEncodeError:
        raise Broken("half a character") from None
    except (ValueError, SyntaxError):
        return json.dumps(whole)[1:-1]
    return json.dumps(char, ensure_ascii=False)[1:-1]


def _is_half(escape: str, first: int) -> bool:
    """Of the 1,024 halves of characters from there on."""
    found = re.fullmatch(r"\\u([0-9a-fA-F]{4})", escape)
    return found is not None and first <= int(found[1], 16) < first + 0x400


def _read_items(reader: Reader, emit: Emit, end: str, depth: int) -> Reading[None]:
    reader.at += 1
    emit("[")
    first = True
    while not (yield from _ended(reader, end)):
        emit("" if first else ", ")
        first = False
        yield from read_literal(reader, emit, depth + 1)
        yield from _comma(reader, end)
    emit("]")


def _read_members(reader: Reader, emit: Emit, depth: int) -> Reading[None]:
    reader.at += 1
    emit("{")
    first = True
    while not (yield from _ended(reader, "}")):
        emit("" if first else ", ")
        first = False
        key: list[str] = []
        yield from read_literal(reader, key.append, depth + 1)
        spelled = "".join(key)
        emit(spelled if spelled.startswith('"') else json.dumps(spelled))
        yield from reader.skip_space()
        yield from reader.expect(":")
        emit(": ")
        yield from reader.skip_space()
        yield from read_literal(reader, emit, depth + 1)
        yield from _comma(reader, "}")
    emit("}")


def _ended(reader: Reader, end: str) -> Reading[bool]:
    yield from reader.skip_space()
    return (yield from reader.take(end))


def _comma(reader: Reader, end: str) -> Reading[None]:
    """Behind a member: a comma, or the end, which stays."""
    yield from reader.skip_space()
    if (yield from reader.peek()) != end:
        yield from reader.expect(",")


def read_keywords(reader: Reader, emit: Emit) -> Reading[None]:
    """`(name=value, …)`, as a JSON object."""
    yield from reader.expect("(")
    emit("{")
    first = True
    while not (yield from _ended(reader, ")")):
        name = yield from reader.match(IDENTIFIER)
        if not name:
            raise Broken("an argument has no name")
        yield from reader.skip_space()
        yield from reader.expect("=")
        emit(("" if first else ", ") + json.dumps(name) + ": ")
        first = False
        yield from reader.skip_space()
        yield from read_literal(reader, emit)
        yield from _comma(reader, ")")
    emit("}")
