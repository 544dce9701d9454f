"""`GET /v1/models`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from slipway.api.frontend import Frontend, frontend
from slipway.api.responses import json_response

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    front = frontend(request)
    cards = [_card(front, name) for name in front.settings.served_names]
    return json_response({"object": "list", "data": cards})


@router.get("/v1/models/{name:path}")
async def show_model(request: Request, name: str) -> Response:
    front = frontend(request)
    front.check_name(name)
    return json_response(_card(front, name))


def _card(front: Frontend, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": front.created,
        "owned_by": "slipway",
        "root": front.settings.model,
        "parent": None,
        "max_model_len": front.model.max_model_len,
    }
