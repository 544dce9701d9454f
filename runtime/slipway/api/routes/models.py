"""`GET /v1/models`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.adapters import ServedAdapter
from slipway.api.frontend import Frontend, frontend
from slipway.api.protocol.answers import ModelCard, ModelList
from slipway.api.responses import json_response
from slipway.api.route import ApiRoute


async def list_models(request: Request) -> Response:
    front = frontend(request)
    cards = [_card(front, name) for name in front.settings.served_names]
    return json_response(ModelList(data=[*cards, *(_card_of(front, one) for one in front.adapters)]))


async def show_model(request: Request) -> Response:
    front = frontend(request)
    name = request.path_params["name"]
    adapter = front.check_exists(name)
    return json_response(_card(front, name) if adapter is None else _card_of(front, adapter))


def _card(front: Frontend, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=front.created,
        root=front.settings.model,
        max_model_len=front.model.max_model_len,
    )


def _card_of(front: Frontend, adapter: ServedAdapter) -> ModelCard:
    return ModelCard(
        id=adapter.ref.name,
        created=adapter.created,
        root=adapter.path,
        parent=adapter.parent,
        max_model_len=front.model.named(adapter).longest,
    )


routes = [
    ApiRoute("/v1/models", list_models, answer=ModelList),
    ApiRoute("/v1/models/{name:path}", show_model, answer=ModelCard),
]
