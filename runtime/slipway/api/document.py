"""The API's document: its OpenAPI schema, and two pages that show it.

FastAPI writes them, in a thread, and does nothing else: importing it takes as long as all other modules
of the API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipway import __version__
from slipway.api.responses import json_response
from slipway.api.route import ApiRoute

TITLE = "Slipway"


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
    lifted: dict[str, Any] = {}
    for route in routes:
        extra: dict[str, Any] = {}
        if route.body is not None:
            schema = route.body.model_json_schema(ref_template="#/components/schemas/{model}")
            lifted |= schema.pop("$defs", {})
            extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        if route.param_convertors:
            extra["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in route.param_convertors
            ]
        app.add_api_route(route.path, route.endpoint, methods=[route.method], openapi_extra=extra or None)
    document = app.openapi()
    document.setdefault("components", {}).setdefault("schemas", {}).update(lifted)
    if root_path:
        document["servers"] = [{"url": root_path}]
    return document
