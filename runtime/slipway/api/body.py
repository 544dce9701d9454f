"""Reading a request's body: bounded, strict JSON, then the schema."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from slipway.api.errors import ApiError, from_validation

MAX_BODY_BYTES = 32 << 20
SHORT_BODY_BYTES = 8 << 10
"""About 2,000 tokens, tokenized in 1 ms: to a thread and back takes as long where every core is busy."""
MAX_DEPTH = 64
"""Levels of lists and objects within one another; a tool's JSON schema needs a dozen."""
MAX_ITEMS = 1 << 20
"""Members of one list or object; the longest is a prompt of token ids."""

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The body as a `model`. Raises ApiError 400 or 413 with the field at fault."""
    raw = parse(await _read(request))
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise from_validation(error) from None


def is_short(request: Request) -> bool:
    """Whether working on this body cannot hold up the event loop. Unknown lengths are long."""
    declared = _declared(request)
    return declared is not None and declared <= SHORT_BODY_BYTES


def _declared(request: Request) -> int | None:
    """What the Content-Length says."""
    value = request.headers.get("content-length", "")
    return int(value) if value.isdecimal() else None


async def _read(request: Request) -> bytes:
    too_large = ApiError(
        f"The body is larger than {MAX_BODY_BYTES >> 20} MiB, the most that this server reads.",
        status=413,
        code="request_too_large",
    )
    if (_declared(request) or 0) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise too_large
    except ClientDisconnect:
        raise ApiError("The client left before its request was read.", status=400) from None
    return bytes(body)


def parse(body: bytes) -> dict[str, Any]:
    """Strict JSON: no NaN, no Infinity, no lone surrogates, no abyss. Raises ApiError."""
    if not body:
        raise ApiError("The body is empty; it should be a JSON object.", code="invalid_json")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error}."
        raise ApiError(message, code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError("The body is valid JSON but not an object.", code="invalid_json")
    _check_extent(value)
    return value


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
