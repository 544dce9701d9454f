"""`GET /console`, to which `/` leads: a page to chat with the model, try its parameters and watch the server.

Its files hold no secret and a browser loads them before anyone could type a key, so they are public; the
requests that the page sends carry the key.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from slipway.api.route import ApiRoute, Endpoint

FOLDER = Path(__file__).parents[1] / "console"
PAGE = "index.html"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors", "trusted-types")),
        "require-trusted-types-for 'script'",
    )
)
"""Own files alone, and no way to make markup or code of a text."""


def console_routes() -> list[ApiRoute]:
    """The page, and each of its files below it, as they are when the server starts."""

    async def to_page(request: Request) -> Response:
        return RedirectResponse("console")  # relative: behind a proxy nobody here knows the prefix

    return [
        ApiRoute("/", to_page, public=True),
        *(
            ApiRoute("/console" if path.name == PAGE else f"/console/{path.name}", _file(path), public=True)
            for path in sorted(FOLDER.iterdir())
        ),
    ]


def _file(path: Path) -> Endpoint:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {
        "Cache-Control": "no-cache",  # asked for again each time, and answered by 304 until it changes
        "Content-Security-Policy": POLICY,
        "ETag": etag,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    async def file(request: Request) -> Response:
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=TYPES[path.suffix])

    return file
