"""The API key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable

from starlette.requests import Request

from slipway.api.errors import ApiError

_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def guard(api_key: str | None) -> Callable[[Request], Awaitable[None]]:
    """Lets pass whoever presents the key; everyone where there is none."""
    if api_key is None:

        async def let_pass(request: Request) -> None:
            return None

        return let_pass

    wanted = _digest(api_key.encode("utf-8", "surrogateescape"))

    async def require_key(request: Request) -> None:
        header = request.headers.get("authorization", "")
        scheme, _, presented = header.partition(" ")
        if scheme.lower() != "bearer" or not presented.strip():
            message = "This server needs an API key: send Authorization: Bearer KEY."
            raise ApiError(message, status=401, code="missing_api_key", headers=_CHALLENGE)
        # Digests have one length, so that the comparison tells nothing of the key's.
        sent = _digest(presented.strip().encode("latin-1"))  # the bytes as they came
        if not hmac.compare_digest(sent, wanted):
            message = "The API key is not the one of this server."
            raise ApiError(message, status=401, code="invalid_api_key", headers=_CHALLENGE)

    return require_key


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
