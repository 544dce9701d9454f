"""Files that are sent as they are and need no key: a browser loads them before anyone could type one."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.route import ApiRoute

TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def static_route(at: str, path: Path, headers: Mapping[str, str]) -> ApiRoute:
    """`path` as it is when it is first asked for, with `headers` besides its own."""

    @cache
    def read() -> tuple[bytes, str]:
        content = path.read_bytes()
        return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    async def file(request: Request) -> Response:
        content, etag = await asyncio.to_thread(read)
        sent = {
            **headers,
            "Cache-Control": "no-cache",  # asked for again each time, and answered by 304 until it changes
            "ETag": etag,
            "X-Content-Type-Options": "nosniff",
        }
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=sent)
        return Response(content, headers=sent, media_type=TYPES[path.suffix])

    return ApiRoute(at, file, public=True)
