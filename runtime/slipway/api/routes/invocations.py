"""`POST /invocations`, the one path that SageMaker knows: a chat or a completion, as its fields say."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.body import read_one_of
from slipway.api.errors import ApiError
from slipway.api.protocol.chat import ChatRequest
from slipway.api.protocol.completions import CompletionRequest
from slipway.api.routes import chat, completions
from slipway.api.routes.inference import InferenceRoute, answered


async def invoke(request: Request) -> Response:
    arrival = time.monotonic()
    body = await read_one_of(request, _meant)
    if isinstance(body, ChatRequest):
        return await answered(request, chat.FORM, body, arrival)
    return await answered(request, completions.FORM, body, arrival)


def _meant(fields: dict[str, Any]) -> type[ChatRequest] | type[CompletionRequest]:
    if "messages" in fields:
        return ChatRequest
    if "prompt" in fields:
        return CompletionRequest
    message = "The body has neither messages, as a chat has, nor a prompt, as a completion has."
    raise ApiError(message, param="messages", code="missing")


routes = [InferenceRoute("/invocations", invoke, "POST")]
