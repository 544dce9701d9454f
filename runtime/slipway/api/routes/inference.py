"""What routes that generate have in common."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from slipway.api.body import body_bytes, read_body
from slipway.api.configure import Settings
from slipway.api.errors import ApiError, renamed
from slipway.api.frontend import Frontend, drawn_id, frontend, request_id
from slipway.api.generate import Order, Run
from slipway.api.model import ServedModel
from slipway.api.protocol.answers import AnswerPart
from slipway.api.protocol.common import Generation
from slipway.api.responses import PING, EventStream, json_response, unless_gone
from slipway.api.route import ApiRoute

CLIENT_LEFT = 499
"""Nobody reads it; logs call it "client closed request"."""

Body = TypeVar("Body", bound=Generation)


class Answer(Protocol):
    """Writes the outputs of a run in the shape of one route."""

    async def whole(self) -> AnswerPart: ...
    def events(self) -> AsyncIterator[bytes]: ...


class InferenceRoute(ApiRoute):
    """Holds a place of the admission from before the body is read to the last byte of the answer."""

    async def respond(self, request: Request, send: Send) -> None:
        with frontend(request).admission.entered():
            await super().respond(request, send)


@dataclass(frozen=True, slots=True)
class Form(Generic[Body]):
    """One way to ask for outputs and to answer."""

    prefix: str
    """Begins the answer's id."""
    body: type[Body]
    make_order: Callable[[Body, ServedModel, Settings, str], Order]
    make_answer: Callable[[Frontend, Body, Run], Answer]
    names: Mapping[str, str] = field(default_factory=dict)
    """What the body calls fields that an order's errors name otherwise."""
    kept: bool = False
    """Answers are found again by their ids: no client may choose one."""
    name: str = "Completions"
    """What the API is called."""
    ping: bytes = PING
    """What a stream says while it waits."""
    more_bytes: Callable[[Body], int] = lambda body: 0
    """Bytes that an order is made of beside the body."""

    async def answer(self, request: Request, body: Body, arrival: float) -> Response:
        """To a body that was read, of a request that came at `arrival`: streamed or whole."""
        front = frontend(request)
        front.check_name(body.model)
        body.draw_seeds(front.seeds.of_next_request())
        own_id = drawn_id(self.prefix) if self.kept else request_id(request, self.prefix, body.request_id)
        front.model.check_generates(self.name)
        num_bytes = body_bytes(request) + self.more_bytes(body)

        def make(model: ServedModel) -> Order:
            return self.make_order(body, model, front.settings, own_id)

        try:
            order = await front.prepare(body.model, make, num_bytes, quick=body.is_quick)
        except ApiError as error:
            raise renamed(error, self.names) from None
        run = front.submit(order, body.model, arrival, request.headers)
        answer = self.make_answer(front, body, run)
        if body.stream:
            seconds = front.settings.sse_keep_alive_interval
            return EventStream(answer.events(), close=run.abort, ping=self.ping, ping_seconds=seconds)
        try:
            whole = await unless_gone(request.receive, answer.whole())
        finally:
            run.abort()
        return Response(status_code=CLIENT_LEFT) if whole is None else json_response(whole)


async def generate(request: Request, form: Form[Body]) -> Response:
    """From a request's body to its answer."""
    arrival = time.monotonic()
    return await form.answer(request, await read_body(request, form.body), arrival)
