"""The application: routes, guards and what wraps them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from slipway.api import errors
from slipway.api.auth import guard
from slipway.api.configure import Arguments
from slipway.api.document import document_routes
from slipway.api.edge import Edge
from slipway.api.frontend import Frontend
from slipway.api.request_log import Unsaid
from slipway.api.route import ApiRoute
from slipway.api.routes import (
    adapters,
    chat,
    classify,
    completions,
    embeddings,
    invocations,
    messages,
    models,
    pooling,
    responses,
    score,
    state,
    tokenize,
)
from slipway.api.routes.console import console_routes
from slipway.api.routes.inference import InferenceRoute
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.plugins import imported


def build_app(front: Frontend, arguments: Arguments) -> Starlette:
    """Raises Exit where a --middleware cannot be imported."""
    settings = front.settings
    routes = [
        *models.routes,
        *(adapters.routes if settings.updates_loras else []),
        *chat.routes,
        *completions.routes,
        *invocations.routes,
        *responses.routes,
        *messages.routes,
        *embeddings.routes,
        *score.routes,
        *classify.routes,
        *pooling.routes,
        *tokenize.routes,
        *(tokenize.info_routes if settings.enable_tokenizer_info_endpoint else []),
        *state.routes,
        *(state.dev_routes if settings.dev_mode else []),
        *(state.profile_routes if settings.profiles else []),
    ]
    if not settings.disable_fastapi_docs:
        described = document_routes(tuple(routes), settings.root_path, bool(settings.api_keys))
        routes += [*described, *console_routes()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: errors.answer})
    app.router.redirect_slashes = False
    app.router.default = partial(_without_slash, routes, app.router.default)
    app.state.frontend = front
    app.state.guard = guard(settings.api_keys)
    told = {one.path for one in routes if isinstance(one, InferenceRoute)}
    Unsaid.apply(told | {*settings.disable_access_log_for_endpoints}, settings.root_path)
    _add_middleware(app, front, arguments)
    return app


async def _without_slash(
    routes: Sequence[ApiRoute], otherwise: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Redirect from a route's path with a slash behind it to the route.

    To a relative address, unlike Starlette: behind a proxy the server knows neither the scheme that clients
    use nor, where `--root-path` is stripped, that it was there.
    """
    path: str = scope["path"]
    route_scope = {**scope, "path": path[:-1]}
    if not path.endswith("/") or all(route.matches(route_scope)[0] is Match.NONE for route in routes):
        await otherwise(scope, receive, send)
        return
    query = scope["query_string"].decode("latin-1")
    address = f"../{quote(path[:-1].rpartition('/')[2], safe='')}" + (f"?{query}" if query else "")
    await RedirectResponse(address)(scope, receive, send)


def _add_middleware(app: Starlette, front: Frontend, arguments: Arguments) -> None:
    """The last one added is the outermost."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=arguments["allowed_origins"],
        allow_credentials=arguments["allow_credentials"],
        allow_methods=arguments["allowed_methods"],
        allow_headers=arguments["allowed_headers"],
    )
    for path in arguments["middleware"] or []:
        found = imported(path, "--middleware", "middleware")
        if inspect.isclass(found):
            app.add_middleware(cast(Any, found))
        elif inspect.iscoroutinefunction(found):
            app.add_middleware(BaseHTTPMiddleware, dispatch=found)
        else:
            message = f"--middleware {path} is neither a class nor an async function."
            raise Exit(BAD_ARGUMENTS, message, argument="middleware")
    app.add_middleware(
        Edge,
        admission=front.admission,
        root_path=front.settings.root_path,
        request_id_header=front.settings.enable_request_id_headers,
    )
