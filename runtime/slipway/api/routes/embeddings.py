"""`POST /v1/embeddings`."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.configure import Settings
from slipway.api.frontend import Frontend
from slipway.api.generate import Order, Run
from slipway.api.model import ServedModel
from slipway.api.pooled_prompts import input_order
from slipway.api.protocol.pooling import EmbeddingRequest
from slipway.api.protocol.pooling_answers import Embedding, Embeddings
from slipway.api.routes.inference import InferenceRoute
from slipway.api.routes.pooling import PooledForm, check_whole, dimensions, head, num_inputs, pool, vector
from slipway.engine.messages import Pooled
from slipway.engine.params import PoolingParams


def _check(model: ServedModel) -> None:
    """Raises ApiError where the model does not make one vector of a text."""
    check_whole(model, "Embeddings", "embed")


def _order(body: EmbeddingRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
    params = PoolingParams(dimensions(body.dimensions, model), body.normalize)
    return input_order(body, model, settings, own_id, params)


def _write(body: EmbeddingRequest, front: Frontend, run: Run, pooled: Sequence[Pooled]) -> Embeddings:
    form = body.encoding_format
    data = [Embedding(index=index, embedding=vector(one, form)) for index, one in enumerate(pooled)]
    return Embeddings(**head(run), data=data)


FORM = PooledForm("embd-", EmbeddingRequest, _check, _order, _write, num_inputs)


async def create_embedding(request: Request) -> Response:
    return await pool(request, FORM)


routes = [
    InferenceRoute("/v1/embeddings", create_embedding, "POST", body=EmbeddingRequest, answer=Embeddings)
]
