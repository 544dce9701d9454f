"""`GET /console`, to which `/` leads: a page to chat with the model, try its parameters and watch the server.

Its files hold no secret and a browser loads them before anyone could type a key, so they are public; the
requests that the page sends carry the key.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from slipway.api.route import ApiRoute
from slipway.api.static import static_route

FOLDER = Path(__file__).parents[1] / "console"
PAGE = "index.html"
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
    """The page, and each of its files below it."""
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}

    async def to_page(request: Request) -> Response:
        return RedirectResponse("console")  # relative: behind a proxy nobody here knows the prefix

    return [
        ApiRoute("/", to_page, public=True),
        *(
            static_route("/console" if path.name == PAGE else f"/console/{path.name}", path, headers)
            for path in sorted(FOLDER.iterdir())
        ),
    ]
