"""The API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request

from slipway.api.errors import ApiError

_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def guard(api_keys: Sequence[str]) -> Callable[[Request], Awaitable[None]]:
    """Lets pass whoever presents one of the keys; everyone where there is none."""
    if not api_keys:

        async def let_pass(request: Request) -> None:
            return None

        return let_pass

    wanted = [_digest(key.encode("utf-8", "surrogateescape")) for key in api_keys]

    async def require_key(request: Request) -> None:
        header = request.headers.get("authorization", "")
        scheme, _, presented = header.partition(" ")
        presented = presented.strip(" \t")  # and nothing else: bytes of UTF-8 are white space in Latin-1
        if scheme.lower() != "bearer" or not presented:
            message = "This server needs an API key: send Authorization: Bearer KEY."
            raise ApiError(message, status=401, code="missing_api_key", headers=_CHALLENGE)
        # Digests have one length and every key is compared, so that the time tells nothing of them.
        sent = _digest(presented.encode("latin-1"))  # the bytes as they came
        matches = [hmac.compare_digest(sent, key) for key in wanted]
        if not any(matches):
            message = "The API key is none of this server's."
            raise ApiError(message, status=401, code="invalid_api_key", headers=_CHALLENGE)

    return require_key


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
