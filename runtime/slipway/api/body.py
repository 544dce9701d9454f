"""Reading a request's body: bounded, strict JSON, then the schema."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from string import ascii_letters, digits
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from slipway.api.admission import LONG_BODY_BYTES, SHORT_BODY_BYTES
from slipway.api.errors import ApiError, from_validation, shown_value
from slipway.api.frontend import frontend
from slipway.api.unknown_fields import unknown

MAX_DEPTH = 64
"""Levels of lists and objects within one another; a tool's JSON schema needs a dozen."""
MAX_ITEMS = 1 << 20
"""Members of one list or object; the longest is a prompt of token ids."""
MAX_NODES = 300_000
"""Lists, objects and keys of a long body. The parser holds the interpreter's lock while it makes them: for as
many some 100 ms."""

_BASE64 = f"{ascii_letters}{digits}+/=".encode()

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The body as a `model`; a long one is parsed and checked in a thread. Raises as `read_one_of`."""
    return await read_one_of(request, lambda fields: model)


async def read_one_of(request: Request, choose: Callable[[dict[str, Any]], type[Model]]) -> Model:
    """The body as the model that is chosen by its fields.

    Raises ApiError 400 with the field at fault, 413, and 503 where others' bodies fill the memory.
    """
    check_media_type(request.headers.get("content-type"))
    front = frontend(request)
    with front.bodies.reading() as grown:
        body = await _read(request, grown)
        request.state.body_bytes = len(body)
        if len(body) <= SHORT_BODY_BYTES:
            model, others = _checked(body, choose)
        else:
            check = partial(_checked, body, choose)
            if len(body) > LONG_BODY_BYTES:
                check = partial(_checked_apart, body, choose, front.bodies.plain)
            model, others = await front.in_thread(check, len(body))
    if others:
        request.state.warning = front.unknown_fields.warning(request.url.path, others, model)
    return model


def check_media_type(header: str | None) -> None:
    """Raises ApiError for all but JSON.

    A web page may make a browser send text, forms, and a body without any type to whatever address it likes,
    and only what it does not send so is asked about before (CORS). So a missing header is refused like a
    wrong one, as vLLM does.
    """
    kind = (header or "").partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    found = "There is no Content-Type" if header is None else f"The Content-Type is {shown_value(header)}"
    message = f"{found}, but this path reads JSON: send the header Content-Type: application/json."
    raise ApiError(message, code="invalid_content_type")


def body_bytes(request: Request) -> int:
    """The length of the body that was read."""
    length: int = request.state.body_bytes
    return length


def _declared(request: Request) -> int | None:
    """What the Content-Length says."""
    value = request.headers.get("content-length", "")
    return int(value) if value.isdecimal() else None


async def _read(request: Request, grown: Callable[[int], None]) -> bytearray:
    if (declared := _declared(request) or 0) > frontend(request).bodies.largest:
        grown(declared)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            grown(len(body))
    except ClientDisconnect:
        raise ApiError("The client left before its request was read.", status=400) from None
    return body


def _checked_apart(
    body: bytearray, choose: Callable[[dict[str, Any]], type[Model]], plain: int
) -> tuple[Model, list[str]]:
    """Without the garbage collector: it would look at each of a million new objects while the parser holds
    the interpreter's lock, and JSON has no cycles. No two threads do so at once (`Frontend.in_thread`)."""
    _check_plain(body, plain)
    _check_nodes(body)
    gc.disable()
    try:
        return _checked(body, choose)
    finally:
        gc.enable()


def _checked(body: bytearray, choose: Callable[[dict[str, Any]], type[Model]]) -> tuple[Model, list[str]]:
    """The body, and which fields it has beside the model's."""
    raw = parse(body)
    try:
        model = choose(raw).model_validate(raw)
    except ValidationError as error:
        raise from_validation(error) from None
    return model, list(unknown(raw, model))


def parse(body: bytes | bytearray) -> dict[str, Any]:
    """Strict JSON: no NaN, no Infinity, no lone surrogates, no abyss. Raises ApiError."""
    if not body:
        raise ApiError("The body is empty; it should be a JSON object.", code="invalid_json")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(_why_unread(body, str(error)), code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError("The body is valid JSON but not an object.", code="invalid_json")
    _check_extent(value)
    return value


def _why_unread(body: bytes | bytearray, error: str) -> str:
    """In our words where the parser's would mislead: it has limits, and takes bytes for surrogates."""
    if error.startswith("depth limit exceeded"):
        return f"The body nests more than {MAX_DEPTH} levels deep."
    if error.startswith("number is infinity"):
        return "The body has a number that no 64-bit float can hold."
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return f"The body is not UTF-8: byte {wrong.start} is 0x{body[wrong.start]:02x}."
    return f"The body is not valid JSON: {error}."


def _check_plain(body: bytearray, most: int) -> None:
    """Raises ApiError 413 where a body that embeddings may make long is long by something else."""
    if len(body) <= most:
        return
    parts = (body[begin : begin + LONG_BODY_BYTES] for begin in range(0, len(body), LONG_BODY_BYTES))
    if sum(len(part.translate(None, _BASE64)) for part in parts) > most:
        message = (
            f"The body is larger than {most >> 20} MiB, the most that this server reads of all but base64."
        )
        raise ApiError(message, status=413, code="request_too_large")


def _check_nodes(body: bytearray) -> None:
    """Before the parser makes an object of each."""
    if sum(body.count(mark) for mark in b"{[:") <= MAX_NODES:
        return
    import numpy as np  # which no API process needs but for this

    # What is between quotes is no node. Of a run of backslashes, pairs stand for themselves.
    bare = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    quoted = np.bitwise_xor.accumulate(bare == ord('"'))
    nodes = sum(int(np.count_nonzero((bare == mark) > quoted)) for mark in b"{[:")
    if nodes > MAX_NODES:
        message = f"The body holds {nodes} lists, objects and keys; this server reads {MAX_NODES} at most."
        raise ApiError(message, code="request_too_large")


def _check_extent(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        if any(len(container) > MAX_ITEMS for container in level):
            message = f"The body holds a list or object of more than {MAX_ITEMS} members."
            raise ApiError(message, code="request_too_large")
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise ApiError(f"The body nests more than {MAX_DEPTH} levels deep.", code="invalid_json")
