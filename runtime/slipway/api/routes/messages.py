"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients want them."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipway.api.body import body_bytes, read_body
from slipway.api.configure import Settings
from slipway.api.errors import ApiError, TooLong, in_our_words
from slipway.api.frontend import frontend, request_id
from slipway.api.generate import Order
from slipway.api.message_answer import MessageAnswer, anthropic_error, too_long
from slipway.api.message_input import NAMES, chat_of, prompt_chat
from slipway.api.model import ServedModel
from slipway.api.prepare import chat_order, chat_prompt
from slipway.api.protocol.message_answers import (
    AnthropicError,
    AnthropicMessage,
    MessageEvent,
    Ping,
    TokensCount,
)
from slipway.api.protocol.messages import CountTokensRequest, MessagesRequest
from slipway.api.responses import json_response, named_event
from slipway.api.route import ApiRoute
from slipway.api.routes.inference import Form, InferenceRoute, generate


class AnthropicRoute(ApiRoute):
    """Takes the key as `x-api-key`, too, and says what is wrong in Anthropic's form."""

    failure = AnthropicError

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().handle(_with_bearer(scope), receive, send)
        except HTTPException as error:
            request = Request(scope)
            told = in_our_words(request, error)
            answer = anthropic_error(told, request_id(request, "req_"))
            headers = {**(error.headers or {}), "request-id": answer.request_id}
            await json_response(answer, told.status_code, headers)(scope, receive, send)


class AnthropicInferenceRoute(AnthropicRoute, InferenceRoute):
    pass


def _with_bearer(scope: Scope) -> Scope:
    """The request with its `x-api-key` as the header that the guard knows."""
    headers = dict(scope["headers"])
    key = headers.get(b"x-api-key")
    if key is None or b"authorization" in headers:
        return scope
    return {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + key)]}


async def create_message(request: Request) -> Response:
    return await generate(request, FORM)


def _order(body: MessagesRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
    try:
        return chat_order(chat_of(body, model.texts.formats), model, settings, own_id)
    except TooLong as error:
        raise ApiError(too_long(error), param=error.param, code=error.code) from None


async def count_tokens(request: Request) -> Response:
    front = frontend(request)
    body = await read_body(request, CountTokensRequest)
    model = front.model.named(front.check_name(body.model))

    def counted() -> int:
        chat = prompt_chat(body, model.texts.formats)
        return len(chat_prompt(chat, model, front.settings, must_fit=False)[1])

    return json_response(TokensCount(input_tokens=await front.in_thread(counted, body_bytes(request))))


FORM = Form("msg_", MessagesRequest, _order, MessageAnswer, NAMES, name="Messages", ping=named_event(Ping()))
routes = [
    AnthropicInferenceRoute(
        "/v1/messages",
        create_message,
        "POST",
        body=MessagesRequest,
        answer=AnthropicMessage,
        chunk=MessageEvent,
    ),
    AnthropicRoute(
        "/v1/messages/count_tokens", count_tokens, "POST", body=CountTokensRequest, answer=TokensCount
    ),
]
