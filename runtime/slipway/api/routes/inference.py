"""What routes that generate have in common."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

CLIENT_LEFT = 499
"""Nobody reads it; logs call it "client closed request"."""


class InferenceRoute(APIRoute):
    """Holds a place of the admission from a request's arrival to the last byte of its answer."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        with scope["app"].state.frontend.admission.entered():
            await super().handle(scope, receive, send)


def client_left() -> Response:
    return Response(status_code=CLIENT_LEFT)


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI part of a body that the route reads itself; `app.openapi` lifts its `$defs` out."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
