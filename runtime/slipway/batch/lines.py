"""The lines of a batch in OpenAI's format: what the input asks, and what the output answers."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import orjson

from slipway.api.errors import ApiError, described, shown_value

MAX_LINE_BYTES = 64 << 20
"""A longer line is refused unread; the bodies that a route takes are smaller."""

ANSWER_HEAD = b'{"id":"batch_req_'
"""How every line of the output begins."""
_ANSWER = re.compile(ANSWER_HEAD + rb'([1-9][0-9]{0,17})_([0-9a-f]{16})","custom_id":')


class Refused(Exception):
    """A line that no route is asked about; the message says what is wrong with it."""

    def __init__(self, message: str, param: str | None = None, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.custom_id = custom_id

    @property
    def body(self) -> dict[str, Any]:
        code = "invalid_value" if self.param else "invalid_json"
        shaped: dict[str, Any] = msgspec.to_builtins(
            described(ApiError(str(self), param=self.param, code=code))
        )
        return shaped


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input, without the white space around it; blank ones are only counted."""

    number: int
    """From 1."""
    text: bytes
    digest: int
    """64 bits of a line's SHA-256, from which a resumed run sees whether the line is still the same."""
    too_long: bool
    """`text` is only what it begins with."""

    @property
    def answer_id(self) -> str:
        return f"batch_req_{self.number}_{self.digest:016x}"


@dataclass(frozen=True, slots=True)
class Question:
    """What a line asks: this body, of this path."""

    custom_id: str
    path: str
    body: bytes


class _Shape(msgspec.Struct):
    custom_id: object = msgspec.UNSET
    method: object = msgspec.UNSET
    url: object = msgspec.UNSET
    body: msgspec.Raw = msgspec.Raw()


class _Streamed(msgspec.Struct):
    stream: object = False


_shape = msgspec.json.Decoder(_Shape)
_streamed = msgspec.json.Decoder(_Streamed)


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """The lines that are not blank, one in memory at a time."""
    number = 0
    while text := file.readline(MAX_LINE_BYTES):
        number += 1
        if number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        first = text.strip()
        hashed = hashlib.sha256(first)
        too_long = False
        while not text.endswith(b"\n") and (text := file.readline(MAX_LINE_BYTES)):
            too_long = True
            hashed.update(text.strip())
        if first:
            yield Line(number, first, int.from_bytes(hashed.digest()[:8]), too_long)


def custom_id_of(line: Line) -> str | None:
    """What the line is called, if it says so."""
    try:
        name = _shaped(line).custom_id
    except Refused:
        return None
    return name if isinstance(name, str) else None


def read_question(line: Line, paths: Collection[str]) -> Question:
    """What the line asks, of one of these paths. Raises Refused."""
    shape = _shaped(line)
    name = shape.custom_id
    if not isinstance(name, str) or not name:
        raise Refused(_wrong(line, "custom_id", name, "a text that names the line"), "custom_id")
    if shape.method != "POST":
        raise Refused(_wrong(line, "method", shape.method, "POST"), "method", name)
    if not isinstance(shape.url, str) or shape.url not in paths:
        raise Refused(_wrong(line, "url", shape.url, f"one of {', '.join(paths)}"), "url", name)
    body = bytes(shape.body)
    if not body:
        raise Refused(_wrong(line, "body", msgspec.UNSET, "the request, a JSON object"), "body", name)
    if _is_streamed(body):
        message = f"Line {line.number}: body.stream is true, but an answer here is one line. Leave it out."
        raise Refused(message, "body.stream", name)
    return Question(name, shape.url, body)


def answer_line(line: Line, custom_id: str | None, status: int, body: dict[str, Any]) -> bytes:
    """A line of the output. `error` is the body's where the request failed, and else null."""
    answer = {
        "id": line.answer_id,
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": line.answer_id, "body": body},
        "error": body.get("error") if status >= 400 else None,
    }
    return orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE)


def answered_line(text: bytes) -> tuple[int, int] | None:
    """Number and digest of the input's line that a line of the output answers; None where it is no such."""
    found = _ANSWER.match(text)
    return (int(found[1]), int(found[2], 16)) if found else None


def _shaped(line: Line) -> _Shape:
    if line.too_long:
        raise Refused(f"Line {line.number} is longer than {MAX_LINE_BYTES >> 20} MiB.")
    try:
        return _shape.decode(line.text)
    except msgspec.ValidationError:
        raise Refused(f"Line {line.number} is {_shown(line.text)} but should be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"Line {line.number} is not valid JSON: {error}.") from None
    except RecursionError:
        raise Refused(f"Line {line.number} nests too deep.") from None


def _is_streamed(body: bytes) -> bool:
    try:
        return bool(_streamed.decode(body).stream)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # the route will say what is wrong with it


def _wrong(line: Line, name: str, value: object, wanted: str) -> str:
    if value is msgspec.UNSET:
        return f"Line {line.number}: {name} is missing; it should be {wanted}."
    return f"Line {line.number}: {name} is {shown_value(value)} but should be {wanted}."


def _shown(text: bytes) -> str:
    shown = text[:40].decode(errors="replace")
    return shown if len(text) <= 40 else f"{shown}…"
