"""`POST /classify`."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.configure import Settings
from slipway.api.frontend import Frontend
from slipway.api.generate import Order, Run
from slipway.api.model import ServedModel
from slipway.api.pooled_prompts import input_order
from slipway.api.protocol.pooling import ClassifyRequest
from slipway.api.protocol.pooling_answers import Classification, Classifications
from slipway.api.routes.inference import InferenceRoute
from slipway.api.routes.pooling import PooledForm, check_whole, floats, head, num_inputs, pool
from slipway.engine.messages import Pooled
from slipway.engine.params import PoolingParams


def _check(model: ServedModel) -> None:
    check_whole(model, "Classification", "classify")


def _order(body: ClassifyRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
    return input_order(body, model, settings, own_id, PoolingParams(activate=body.activation))


def _write(body: ClassifyRequest, front: Frontend, run: Run, pooled: Sequence[Pooled]) -> Classifications:
    assert front.model.pools is not None
    labels = front.model.pools.labels
    data = []
    for index, one in enumerate(pooled):
        probs = floats(one).tolist()
        likeliest = probs.index(max(probs))
        label = labels[likeliest] if likeliest < len(labels) else None
        data.append(Classification(index=index, label=label, probs=probs, num_classes=len(probs)))
    return Classifications(**head(run), data=data)


FORM = PooledForm("classify-", ClassifyRequest, _check, _order, _write, num_inputs)


async def classify(request: Request) -> Response:
    return await pool(request, FORM)


routes = [InferenceRoute("/classify", classify, "POST", body=ClassifyRequest, answer=Classifications)]
