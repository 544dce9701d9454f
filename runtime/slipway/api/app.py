"""The application: routes, guards and what wraps them."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any, cast

from fastapi import Depends, FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html

from slipway import __version__
from slipway.api import errors
from slipway.api.auth import guard
from slipway.api.configure import Arguments
from slipway.api.edge import Edge
from slipway.api.frontend import Frontend
from slipway.api.responses import json_response
from slipway.api.routes import chat, completions, models, state, tokenize
from slipway.exits import BAD_ARGUMENTS, Exit


def build_app(front: Frontend, arguments: Arguments) -> FastAPI:
    """Raises Exit where a --middleware cannot be imported."""
    settings = front.settings
    app = FastAPI(
        title="Slipway",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.frontend = front
    errors.install(app)
    app.state.guard = guard(settings.api_key)
    needs_key = [Depends(app.state.guard)]
    app.include_router(state.open_router)
    for router in (
        models.router,
        chat.router,
        completions.router,
        tokenize.router,
        state.guarded_router,
        *([state.dev_router] if settings.dev_mode else []),
    ):
        app.include_router(router, dependencies=needs_key)
    if settings.docs:
        _add_docs(app, settings.root_path, needs_key)
    _add_middleware(app, front, arguments)
    return app


def _add_middleware(app: FastAPI, front: Frontend, arguments: Arguments) -> None:
    """The last one added is the outermost."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=arguments["allowed_origins"],
        allow_credentials=arguments["allow_credentials"],
        allow_methods=arguments["allowed_methods"],
        allow_headers=arguments["allowed_headers"],
    )
    for path in arguments["middleware"] or []:
        found = _imported(path)
        if inspect.isclass(found):
            app.add_middleware(cast(Any, found))
        elif inspect.iscoroutinefunction(found):
            app.middleware("http")(found)
        else:
            message = f"--middleware {path} is neither a class nor an async function."
            raise Exit(BAD_ARGUMENTS, message, argument="middleware")
    app.add_middleware(
        Edge,
        admission=front.admission,
        root_path=front.settings.root_path,
        request_id_header=front.settings.request_id_headers,
    )


def _imported(path: str) -> Any:
    """What an import path such as `package.module.Name` names, the current folder included."""
    module, _, name = path.rpartition(".")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"--middleware {path} cannot be imported: {error}."
        raise Exit(BAD_ARGUMENTS, message, argument="middleware") from None


def _add_docs(app: FastAPI, root_path: str, needs_key: list[Any]) -> None:
    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_lifted_definitions(app.openapi())
            if root_path:
                app.openapi_schema["servers"] = [{"url": root_path}]
        return app.openapi_schema

    @app.get("/openapi.json", include_in_schema=False, dependencies=needs_key)
    async def openapi() -> Response:
        return json_response(schema())

    @app.get("/docs", include_in_schema=False, dependencies=needs_key)
    async def docs() -> Response:
        return get_swagger_ui_html(openapi_url=f"{root_path}/openapi.json", title=app.title)

    @app.get("/redoc", include_in_schema=False, dependencies=needs_key)
    async def redoc() -> Response:
        return get_redoc_html(openapi_url=f"{root_path}/openapi.json", title=app.title)


def _with_lifted_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Move the `$defs` of bodies to where their references point."""
    shared = schema.setdefault("components", {}).setdefault("schemas", {})
    for operations in schema["paths"].values():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            for body in content.values():
                shared.update(body["schema"].pop("$defs", {}))
    return schema
