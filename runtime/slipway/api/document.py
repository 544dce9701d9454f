"""The API's document: its OpenAPI schema, and two pages that show it.

FastAPI writes them, in a thread, and does nothing else: importing it takes as long as all other modules
of the API. The pages' scripts come with fastapi-offline: no other server is asked for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from slipway import __version__
from slipway.api.responses import json_response
from slipway.api.route import ApiRoute
from slipway.api.static import static_route

Shape = type[Struct] | UnionType

TITLE = "Slipway"
_REFERENCE = "#/components/schemas/{model}"
_KEY = "key"
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'unsafe-inline'",  # the pages start their viewers by a line of their own
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "worker-src blob:",  # the search of /redoc
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors")),
    )
)
"""The server's own files, and requests to itself."""


def document_routes(described: Sequence[ApiRoute], root_path: str, asks_for_key: bool) -> list[ApiRoute]:
    """`/openapi.json`, `/docs` and `/redoc` of the `described` routes, and what the pages load.

    All are public: they hold no secret, and a browser sends no key when it opens a page.
    """
    schema = cache(partial(openapi_schema, described, root_path, asks_for_key))
    address, icon = f"{root_path}/openapi.json", f"{root_path}/console/icon.svg"

    async def openapi(request: Request) -> Response:
        return json_response(await asyncio.to_thread(schema))

    def swagger(script: str, style: str) -> Response:
        from fastapi.openapi.docs import get_swagger_ui_html

        return get_swagger_ui_html(
            openapi_url=address,
            title=TITLE,
            swagger_js_url=script,
            swagger_css_url=style,
            swagger_favicon_url=icon,
        )

    def redoc(script: str) -> Response:
        from fastapi.openapi.docs import get_redoc_html

        return get_redoc_html(
            openapi_url=address,
            title=TITLE,
            redoc_js_url=script,
            redoc_favicon_url=icon,
            with_google_fonts=False,
        )

    found = find_spec("fastapi_offline")  # importing it imports FastAPI
    assert found is not None
    assert found.origin is not None
    page = partial(_page, root_path, Path(found.origin).parent / "static")
    return [
        ApiRoute("/openapi.json", openapi, public=True),
        *page("/docs", swagger, "swagger-ui-bundle.js", "swagger-ui.css"),
        *page("/redoc", redoc, "redoc.standalone.js"),
    ]


def _page(
    root_path: str, folder: Path, at: str, html: Callable[..., Response], *loaded: str
) -> list[ApiRoute]:
    """A page, and the files of `folder` that it loads, below it. `html` writes it, given their addresses."""

    async def page(request: Request) -> Response:
        shown = await asyncio.to_thread(html, *(f"{root_path}{at}/{name}" for name in loaded))
        shown.headers["Content-Security-Policy"] = _POLICY
        return shown

    files = [static_route(f"{at}/{name}", folder / name, {}) for name in loaded]
    return [ApiRoute(at, page, public=True), *files]


def openapi_schema(routes: Sequence[ApiRoute], root_path: str, asks_for_key: bool) -> dict[str, Any]:
    """What `routes` take and answer, for clients that reach them under `root_path`."""
    from fastapi import FastAPI

    app = FastAPI(title=TITLE, version=__version__)
    told = {shape for route in routes for shape in (route.answer, route.chunk, route.failure)}
    ordered = sorted((shape for shape in told if shape is not None), key=str)
    shapes, schemas = msgspec.json.schema_components(ordered, ref_template=_REFERENCE.format(model="{name}"))
    found = dict(zip(ordered, shapes, strict=True))
    for route in routes:
        extra: dict[str, Any] = {}
        if route.body is not None:
            schema = route.body.model_json_schema(ref_template=_REFERENCE)
            schemas |= schema.pop("$defs", {})
            extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        if asks_for_key and not route.public:
            extra["security"] = [{_KEY: []}]
        if route.param_convertors:
            extra["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in route.param_convertors
            ]
        app.add_api_route(
            route.path,
            route.endpoint,
            methods=[route.method],
            openapi_extra=extra or None,
            responses={200: _content(route, found), "default": _failure(route, found)},
        )
    document = app.openapi()
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas)
    if asks_for_key:
        components["securitySchemes"] = {_KEY: {"type": "http", "scheme": "bearer"}}
    if root_path:
        document["servers"] = [{"url": root_path}]
    return document


def _content(route: ApiRoute, found: Mapping[Shape, Any]) -> dict[str, Any]:
    """What a route answers where all went well."""
    content = {}
    if route.answer is not None:
        content["application/json"] = {"schema": found[route.answer]}
    if route.chunk is not None:
        content["text/event-stream"] = {"schema": found[route.chunk]}
    return {"description": "Success", "content": content}


def _failure(route: ApiRoute, found: Mapping[Shape, Any]) -> dict[str, Any]:
    return {"description": "Failure", "content": {"application/json": {"schema": found[route.failure]}}}
