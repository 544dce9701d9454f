"""Every answer that is not a success, in OpenAI's shape: {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec
import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from slipway.api import wayfinding
from slipway.api.protocol.answers import Error, ErrorDetail

logger = logging.getLogger("slipway.api")
request_logger = logging.getLogger("slipway.api.requests")

_SHOWN_VALUE_CHARACTERS = 80

_BOUNDS = {"greater_than_equal": ("ge", "at least"), "less_than_equal": ("le", "at most")}
"""pydantic's name of a bound → where it holds it, and the words that clients know."""
_LENGTHS = {
    "too_short": ("min_length", "at least", "item"),
    "too_long": ("max_length", "at most", "item"),
    "string_too_short": ("min_length", "at least", "character"),
    "string_too_long": ("max_length", "at most", "character"),
}
"""The same of lengths, with what is counted."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ApiError(HTTPException):
    """A request that is answered with an error.

    `param` names the field at fault; `code` is stable and meant for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        logged: bool = False,
    ) -> None:
        """`logged`: the log has it in the line of its request."""
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code
        self.logged = logged


class TooLong(ApiError):
    """A prompt does not fit into the context, or not with the tokens `wanted` of its answer."""

    def __init__(
        self, message: str, *, param: str, prompt_tokens: int, wanted: int | None, limit: int
    ) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
        self.prompt_tokens = prompt_tokens
        self.wanted = wanted
        self.limit = limit


def not_supported(what: str, param: str | None = None) -> ApiError:
    """The feature exists in the interface and is not built."""
    return ApiError(f"{what} is not supported yet.", param=param, code="not_supported")


def described(error: HTTPException) -> Error:
    """An error as a body or as the last event of a stream."""
    status = error.status_code
    default = "server_error" if status >= 500 else "invalid_request_error"
    return Error(
        error=ErrorDetail(
            message=error.detail,
            type=_TYPES.get(status, default),
            param=getattr(error, "param", None),
            code=getattr(error, "code", None),
        )
    )


def error_response(error: HTTPException) -> Response:
    return Response(
        msgspec.json.encode(described(error)),
        status_code=error.status_code,
        headers=error.headers,
        media_type="application/json",
    )


def of_stream(error: Exception) -> ApiError:
    """What broke a stream, as its client is told."""
    if isinstance(error, ApiError):
        return error
    logger.exception("a stream failed", exc_info=error)
    return ApiError("The server failed on this request; its log says more.", status=500)


def from_validation(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body, in a sentence that names the field and the value."""
    first = error.errors(include_url=False)[0]
    param = field_path(first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "missing":
        return ApiError(f"{param} is missing; it is required.", param=param, code="missing")
    if first["type"] == "value_error":
        return ApiError(message, param=param or None, code="invalid_value")
    shown = shown_value(first["input"])
    name = param or "The body"
    if first["type"] in _BOUNDS:
        bound, words = _BOUNDS[first["type"]]
        text = f"{name} must be {words} {shown_value(first['ctx'][bound])}, got {shown}."
    elif first["type"] in _LENGTHS:
        bound, words, unit = _LENGTHS[first["type"]]
        count = first["ctx"][bound]
        text = f"{name} must have {words} {count} {unit}{'' if count == 1 else 's'}, got {shown}."
    elif first["type"] == "extra_forbidden":
        text = f"{name} is {shown}, and there is no field of that name."
    else:
        wanted = message[:1].lower() + message[1:]
        for lead in ("input should be ", "value should "):
            wanted = wanted.removeprefix(lead)
        wanted = "an object" if wanted.startswith("a valid dictionary") else wanted
        wanted = "a list" if wanted == "a valid list" else wanted
        if first["type"] == "string_pattern_mismatch":
            wanted = f"a text that matches {first['ctx']['pattern']}"
        text = f"{name} is {shown} but should be {wanted}."
    return ApiError(text, param=param or None, code="invalid_value")


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """The same error, for a client whose request calls the fields otherwise; `names` are ours → theirs."""
    if not names:
        return error
    pattern = re.compile(rf"(?<!\w)'[^']*'|\"[^\"]*\"|\b({'|'.join(map(re.escape, names))})\b")

    def told(text: str) -> str:
        """What is quoted is the client's own."""
        return pattern.sub(lambda found: names[found[0]] if found[1] else found[0], text)

    return ApiError(
        told(error.detail),
        status=error.status_code,
        param=error.param and told(error.param),
        code=error.code,
        headers=error.headers,
    )


def field_path(location: Sequence[int | str]) -> str:
    """`("messages", 0, "role")` as `messages[0].role`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def shown_value(value: object) -> str:
    """A value as JSON, cut to a length that fits in a sentence."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        text = repr(value)
    if len(text) > _SHOWN_VALUE_CHARACTERS:
        text = text[: _SHOWN_VALUE_CHARACTERS - 1] + "…"
    return text


def one_line(text: str) -> str:
    """What a client sends makes no line of the log, and moves no cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


async def answer(request: Request, error: Exception) -> Response:
    """Every HTTP exception, the framework's own included, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    return error_response(in_our_words(request, error))


def in_our_words(request: Request, error: HTTPException) -> ApiError:
    """Any HTTP exception, the framework's own included, as one of ours, which the log has then."""
    told = error if isinstance(error, ApiError) else _in_our_words(request, error)
    if not told.logged:
        path, why = one_line(request.url.path), one_line(told.detail)
        request_logger.info("%s %s: %d, %s", request.method, path, told.status_code, why)
    return told


def _in_our_words(request: Request, error: HTTPException) -> ApiError:
    path, routes, headers = request.url.path, request.app.routes, dict(error.headers or {})
    sentence = error.detail
    if error.status_code == 404:
        sentence = wayfinding.nowhere(path, routes)
    elif error.status_code == 405:
        working = wayfinding.methods(request.scope, routes)
        verb = "do" if len(working) > 1 else "does"
        sentence = f"{request.method} does not work on {path}; {' and '.join(working)} {verb}."
        headers["Allow"] = ", ".join(working)
    phrase = HTTPStatus(error.status_code).phrase
    return ApiError(
        sentence,
        status=error.status_code,
        code=phrase.lower().replace(" ", "_"),
        headers=headers,
    )
