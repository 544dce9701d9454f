"""The API's document: its OpenAPI schema, and two pages that show it.

FastAPI writes them, in a thread, and does nothing else: importing it takes as long as all other modules
of the API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import UnionType
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from slipway import __version__
from slipway.api.responses import json_response
from slipway.api.route import ApiRoute

Shape = type[Struct] | UnionType

TITLE = "Slipway"
_REFERENCE = "#/components/schemas/{model}"


def document_routes(described: Sequence[ApiRoute], root_path: str) -> list[ApiRoute]:
    """`/openapi.json`, `/docs` and `/redoc` of the `described` routes."""
    schema = cache(partial(openapi_schema, described, root_path))

    async def openapi(request: Request) -> Response:
        return json_response(await asyncio.to_thread(schema))

    async def docs(request: Request) -> Response:
        return await asyncio.to_thread(page, "get_swagger_ui_html")

    async def redoc(request: Request) -> Response:
        return await asyncio.to_thread(page, "get_redoc_html")

    def page(name: str) -> Response:
        from fastapi.openapi import docs

        shown: Response = getattr(docs, name)(openapi_url=f"{root_path}/openapi.json", title=TITLE)
        return shown

    return [ApiRoute("/openapi.json", openapi), ApiRoute("/docs", docs), ApiRoute("/redoc", redoc)]


def openapi_schema(routes: Sequence[ApiRoute], root_path: str) -> dict[str, Any]:
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
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
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
