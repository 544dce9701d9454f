"""`/v1/responses`: to make one, to read it again, to forget it."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.configure import Settings
from slipway.api.errors import ApiError, not_supported
from slipway.api.frontend import Frontend, frontend
from slipway.api.generate import Order, Run
from slipway.api.model import ServedModel
from slipway.api.prepare import chat_order
from slipway.api.protocol.response_answers import DeletedResponse, ResponseEvent, ResponseObject
from slipway.api.protocol.responses import ResponsesRequest
from slipway.api.response_answer import ResponseAnswer
from slipway.api.response_input import NAMES, chat_of, messages_of
from slipway.api.response_store import ResponseStore, Stored, Turns, not_stored
from slipway.api.responses import json_response
from slipway.api.route import ApiRoute
from slipway.api.routes.inference import Form, InferenceRoute, generate


async def create_response(request: Request) -> Response:
    exchange = _Exchange(frontend(request).responses)
    form = Form(
        "resp_",
        ResponsesRequest,
        exchange.order,
        exchange.answer,
        NAMES,
        kept=True,
        more_bytes=exchange.find_earlier,
    )
    return await generate(request, form)


class _Exchange:
    """One request, what it goes on from, and whether it is stored."""

    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store
        self._earlier: Turns = ()
        self._turns: Turns | None = None

    def find_earlier(self, body: ResponsesRequest) -> int:
        """Look up what the request goes on from; its bytes. Raises ApiError 404."""
        if (previous := body.previous_response_id) is not None:
            stored = None if self._store is None else self._store.get(previous)
            if stored is None:
                raise not_stored(previous, self._store, "previous_response_id")
            self._earlier = stored.turns
        return sum(map(len, self._earlier))

    def order(self, body: ResponsesRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
        """Raises ApiError."""
        messages = messages_of(body.input)
        if self._store is not None and body.store is not False:
            self._turns = (*self._earlier, *map(orjson.dumps, messages))
        chat = chat_of(body, [*map(orjson.loads, self._earlier), *messages], model.longest)
        return chat_order(chat, model, settings, own_id)

    def answer(self, front: Frontend, body: ResponsesRequest, run: Run) -> ResponseAnswer:
        return ResponseAnswer(front, body, run, self._turns)


async def show_response(request: Request) -> Response:
    if request.query_params.get("stream", "").lower() in ("1", "true"):
        raise not_supported("stream: an answer that is streamed again", "stream")
    return Response(_found(request).answer, media_type="application/json")


async def delete_response(request: Request) -> Response:
    _found(request)
    store, response_id = frontend(request).responses, request.path_params["id"]
    assert store is not None
    store.delete(response_id)
    return json_response(DeletedResponse(id=response_id))


async def cancel_response(request: Request) -> Response:
    """Stored ones have ended."""
    _found(request)
    message = (
        f"The response {request.path_params['id']!r} has ended: only one that is made in the background "
        "can be cancelled. A client ends its own request by closing the connection."
    )
    raise ApiError(message, code="invalid_value")


def _found(request: Request) -> Stored:
    """Raises ApiError 404."""
    store, response_id = frontend(request).responses, request.path_params["id"]
    stored = None if store is None else store.get(response_id)
    if stored is None:
        raise not_stored(response_id, store)
    return stored


routes = [
    InferenceRoute(
        "/v1/responses",
        create_response,
        "POST",
        body=ResponsesRequest,
        answer=ResponseObject,
        chunk=ResponseEvent,
    ),
    ApiRoute("/v1/responses/{id}", show_response, answer=ResponseObject),
    ApiRoute("/v1/responses/{id}", delete_response, "DELETE", answer=DeletedResponse),
    ApiRoute("/v1/responses/{id}/cancel", cancel_response, "POST"),
]
