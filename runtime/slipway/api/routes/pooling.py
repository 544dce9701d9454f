"""What routes that pool have in common, and `POST /pooling`."""

from __future__ import annotations

import base64
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.body import body_bytes, read_body
from slipway.api.configure import Settings
from slipway.api.errors import ApiError
from slipway.api.frontend import Frontend, frontend, request_id
from slipway.api.generate import Order, Run
from slipway.api.model import ServedModel
from slipway.api.pooled_prompts import input_order
from slipway.api.protocol.answers import AnswerPart, Usage
from slipway.api.protocol.pooling import InputRequest, PooledFields, PoolingRequest
from slipway.api.protocol.pooling_answers import PooledList, PooledRows
from slipway.api.responses import json_response, unless_gone
from slipway.api.routes.inference import CLIENT_LEFT, InferenceRoute
from slipway.engine.messages import Pooled
from slipway.engine.params import PoolingParams

PROMPT_BYTES = 64
"""Of a text, which take as long to tokenize as a prompt takes beside its text."""
WRITTEN_AT_ONCE = 64 << 10
"""Bytes of vectors that the event loop itself writes: about 1 ms."""

Body = TypeVar("Body", bound=PooledFields)


@dataclass(frozen=True, slots=True)
class PooledForm(Generic[Body]):
    """One way to ask for what prompts are pooled to, and to answer.

    check  raises ApiError where the model is for something else
    """

    prefix: str
    """Begins the answer's id."""
    body: type[Body]
    check: Callable[[ServedModel], None]
    make_order: Callable[[Body, ServedModel, Settings, str], Order]
    write: Callable[[Body, Frontend, Run, Sequence[Pooled]], AnswerPart]
    num_asked: Callable[[Body], int]
    """Inputs, or pairs of texts."""
    more_bytes: Callable[[Body], int] = lambda body: 0
    """Of texts that an order reads more than once."""

    async def answer(self, request: Request, body: Body, arrival: float) -> Response:
        """To a body that was read, of a request that came at `arrival`: all its prompts go to the engine
        together."""
        front = frontend(request)
        front.check_name(body.model)
        self.check(front.model)
        own_id = request_id(request, self.prefix, body.request_id)

        def make(model: ServedModel) -> Order:
            return self.make_order(body, model, front.settings, own_id)

        asked = self.num_asked(body)
        num_bytes = body_bytes(request) + PROMPT_BYTES * asked + self.more_bytes(body)
        order = await front.prepare(body.model, make, num_bytes, quick=body.is_quick)
        run = front.pool(order, body.model, arrival, request.headers)
        try:
            pooled = await unless_gone(request.receive, run.pooled())
        finally:
            run.abort()
        if pooled is None:
            return Response(status_code=CLIENT_LEFT)

        def written() -> Response:
            return json_response(self.write(body, front, run, pooled))

        widest = max(len(one.values) for one in pooled)
        num_bytes = body_bytes(request) + widest * max(asked, len(pooled))
        return written() if num_bytes <= WRITTEN_AT_ONCE else await front.in_thread(written, num_bytes)


async def pool(request: Request, form: PooledForm[Body]) -> Response:
    """From a request's body to its answer."""
    arrival = time.monotonic()
    return await form.answer(request, await read_body(request, form.body), arrival)


def num_inputs(body: InputRequest) -> int:
    return len(body.inputs) or 1


def check_task(model: ServedModel, name: str, *tasks: str) -> None:
    """Raises ApiError where the model is for none of these tasks."""
    task = "generate" if model.pools is None else model.pools.task
    if task not in tasks:
        message = (
            f"The model does not support the {name} API: it serves --task {task}, and this needs "
            f"{' or '.join(tasks)}."
        )
        raise ApiError(message, param="model", code="wrong_task")


def check_whole(model: ServedModel, name: str, *tasks: str) -> None:
    """The same for what is one vector of a whole prompt."""
    check_task(model, name, *tasks)
    if model.pools is not None and model.pools.by_token:
        message = (
            f"The model does not support the {name} API: this server pools to a vector for each token, which "
            "/pooling answers."
        )
        raise ApiError(message, param="model", code="wrong_task")


def floats(pooled: Pooled) -> array[float]:
    """Its numbers, row by row."""
    numbers = array("f")
    numbers.frombytes(pooled.values)
    return numbers


def vector(pooled: Pooled, encoding_format: str | None) -> Any:
    """One vector as JSON or base64, written."""
    if encoding_format == "base64":
        return base64.b64encode(pooled.values).decode()
    return msgspec.Raw(msgspec.json.encode(floats(pooled).tolist()))


def usage(run: Run) -> Usage:
    tokens = run.order.prompt_tokens
    return Usage(prompt_tokens=tokens, completion_tokens=0, total_tokens=tokens)


def head(run: Run) -> dict[str, Any]:
    """The fields that all lists begin with."""
    return {
        "id": run.order.request_id,
        "created": int(time.time()),
        "model": run.model,
        "usage": usage(run),
    }


def dimensions(asked: int | None, model: ServedModel) -> int:
    """How many numbers of a vector are kept; 0: all. Raises ApiError where the model cannot be cut so."""
    pools = model.pools
    assert pools is not None
    if asked is None or asked == pools.dimensions:
        return 0
    if pools.cuts is None:
        message = (
            f"dimensions is {asked}, and the model was not trained for fewer than its {pools.dimensions}: "
            "the first numbers of its vectors mean little by themselves. Leave it out."
        )
    elif asked > pools.dimensions:
        message = f"dimensions is {asked}, more than the {pools.dimensions} of the model."
    elif pools.cuts and asked not in pools.cuts:
        message = f"dimensions is {asked}; the model was trained for {', '.join(map(str, pools.cuts))}."
    else:
        return asked
    raise ApiError(message, param="dimensions", code="invalid_value")


def _check(model: ServedModel) -> None:
    check_task(model, "Pooling", "embed", "classify", "reward")


def _order(body: PoolingRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
    params = PoolingParams(dimensions(body.dimensions, model), body.activation)
    return input_order(body, model, settings, own_id, params)


def _write(body: PoolingRequest, front: Frontend, run: Run, pooled: Sequence[Pooled]) -> PooledList:
    pools = front.model.pools
    assert pools is not None
    form = body.encoding_format
    listed = pools.by_token and form != "base64"
    rows = [
        PooledRows(index=index, data=_rows(one) if listed else vector(one, form))
        for index, one in enumerate(pooled)
    ]
    return PooledList(**head(run), data=rows)


def _rows(pooled: Pooled) -> Any:
    """Vectors row by row, so that the thread that writes them lets others go on between two."""
    width = 4 * pooled.columns
    rows = [
        vector(Pooled(pooled.values[begin : begin + width], pooled.columns), None)
        for begin in range(0, len(pooled.values), width)
    ]
    return cast(Any, rows)


FORM = PooledForm("pool-", PoolingRequest, _check, _order, _write, num_inputs)


async def create_pooling(request: Request) -> Response:
    return await pool(request, FORM)


routes = [InferenceRoute("/pooling", create_pooling, "POST", body=PoolingRequest, answer=PooledList)]
