"""`GET /v1/models`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.frontend import Frontend, frontend
from slipway.api.protocol.answers import ModelCard, ModelList
from slipway.api.responses import json_response
from slipway.api.route import ApiRoute


async def list_models(request: Request) -> Response:
    front = frontend(request)
    return json_response(ModelList(data=[_card(front, name) for name in front.settings.served_names]))


async def show_model(request: Request) -> Response:
    front = frontend(request)
    name = request.path_params["name"]
    front.check_exists(name)
    return json_response(_card(front, name))


def _card(front: Frontend, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=front.created,
        root=front.settings.model,
        max_model_len=front.model.max_model_len,
    )


routes = [
    ApiRoute("/v1/models", list_models, answer=ModelList),
    ApiRoute("/v1/models/{name:path}", show_model, answer=ModelCard),
]
