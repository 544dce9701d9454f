"""JSON read as it arrives: passed on letter by letter, or kept."""

from __future__ import annotations

import json
import re
from typing import Any

from slipway.text.parse.reader import Broken, Emit, Reader, Reading

MAX_DEPTH = 64

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[\w.+-]*")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_SHORT = frozenset('"\\/bfnrt')
"""Escapes of one letter."""


def read_value(reader: Reader, emit: Emit, depth: int = 0) -> Reading[None]:
    """One JSON value, emitted as it is written; raw control characters in strings are escaped.

    Raises Broken for what is no JSON.
    """
    if depth > MAX_DEPTH:
        raise Broken("JSON nests too deep")
    first = yield from reader.peek()
    if first == "{":
        yield from _read_members(reader, emit, depth)
    elif first == "[":
        yield from _read_items(reader, emit, depth)
    elif first == '"':
        yield from read_string(reader, emit)
    else:
        word = yield from reader.match(_WORD)
        if word not in ("true", "false", "null") and not _NUMBER.fullmatch(word):
            raise Broken(f"{word!r} is no JSON value")
        emit(word)


def kept_value(reader: Reader) -> Reading[Any]:
    """One JSON value, whole."""
    parts: list[str] = []
    yield from read_value(reader, parts.append)
    try:
        value = json.loads("".join(parts))
        if isinstance(value, str):
            value.encode()
        return value
    except ValueError:  # Python reads no number of thousands of digits, and writes no half of a character
        raise Broken("a value is too long, or has half a character") from None


def read_string(reader: Reader, emit: Emit) -> Reading[None]:
    """A string with its quotation marks, as JSON writes it."""
    yield from reader.expect('"')
    emit('"')
    while True:
        yield from reader.run(_PLAIN, emit)
        char = yield from reader.peek()
        if char == '"':
            reader.at += 1
            emit('"')
            return
        if char == "\\":
            escape = yield from _escape(reader)
            emit(escape)
        elif char:
            reader.at += 1
            emit(json.dumps(char)[1:-1])
        else:
            raise Broken("the text ends in a string")


def read_decoded_string(reader: Reader, emit: Emit) -> Reading[None]:
    """A string's characters."""
    yield from reader.expect('"')
    while True:
        yield from reader.run(_PLAIN, emit)
        char = yield from reader.peek()
        if char == '"':
            reader.at += 1
            return
        if char == "\\":
            escape = yield from _escape(reader)
            if escape[1] == "u" and 0xD800 <= int(escape[2:], 16) < 0xDC00:
                if (yield from reader.peek(2)) != "\\u":
                    raise Broken("half a character")
                escape += yield from _escape(reader)
            try:
                emit(json.loads(f'"{escape}"').encode().decode())
            except (ValueError, UnicodeEncodeError):
                raise Broken("half a character") from None
        elif char:
            reader.at += 1
            emit(char)
        else:
            raise Broken("the text ends in a string")


def _escape(reader: Reader) -> Reading[str]:
    pair = yield from reader.peek(2)
    if len(pair) == 2 and pair[1] in _SHORT:
        reader.at += 2
        return pair
    whole = yield from reader.peek(6)
    if not re.fullmatch(r"\\u[0-9a-fA-F]{4}", whole):
        raise Broken(f"{pair!r} is no escape")
    reader.at += 6
    return whole


def _space(reader: Reader, emit: Emit) -> Reading[None]:
    start = reader.at
    yield from reader.skip_space()
    emit(reader.text[start : reader.at])


def _read_members(reader: Reader, emit: Emit, depth: int) -> Reading[None]:
    yield from _punctuation(reader, emit, "{")
    if (yield from reader.take("}")):
        emit("}")
        return
    while True:
        yield from read_string(reader, emit)
        yield from _space(reader, emit)
        yield from _punctuation(reader, emit, ":")
        yield from read_value(reader, emit, depth + 1)
        if (yield from _ended(reader, emit, "}")):
            return


def _read_items(reader: Reader, emit: Emit, depth: int) -> Reading[None]:
    yield from _punctuation(reader, emit, "[")
    if (yield from reader.take("]")):
        emit("]")
        return
    while True:
        yield from read_value(reader, emit, depth + 1)
        if (yield from _ended(reader, emit, "]")):
            return


def _punctuation(reader: Reader, emit: Emit, mark: str) -> Reading[None]:
    yield from reader.expect(mark)
    emit(mark)
    yield from _space(reader, emit)


def _ended(reader: Reader, emit: Emit, end: str) -> Reading[bool]:
    """Behind a member: whether it was the last; else the comma has been read."""
    yield from _space(reader, emit)
    if (yield from reader.take(end)):
        emit(end)
        return True
    yield from _punctuation(reader, emit, ",")
    return False
