"""`POST /score` and `/rerank`: how much texts have to do with each other.

A model that classifies reads a pair as one prompt and says it; of a model that embeds it is the cosine of
the angle between two vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import mul
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.configure import Settings
from slipway.api.errors import ApiError
from slipway.api.frontend import Frontend
from slipway.api.generate import Order, Run
from slipway.api.model import ServedModel
from slipway.api.pooled_prompts import pair_prompt, pooled_order, pooled_prompt, text_tokens
from slipway.api.products import check_pairs
from slipway.api.protocol.pooling import PooledFields, RerankRequest, ScoreRequest
from slipway.api.protocol.pooling_answers import PairScore, PairScores, Ranked, RankedDocument, Ranking
from slipway.api.routes.inference import InferenceRoute
from slipway.api.routes.pooling import PooledForm, check_whole, floats, head, pool, usage
from slipway.engine.messages import Pooled
from slipway.engine.params import PoolingParams


class Side(NamedTuple):
    """A text of a pair."""

    text: str
    most: int | None = None
    """Tokens that are read of it, the first ones; None: all."""


Pairs = Sequence[tuple[Side, Side]]


def _check(model: ServedModel) -> None:
    """Raises ApiError where the model does not tell of two texts how near they are."""
    check_whole(model, "Score", "embed", "classify")
    assert model.pools is not None
    if model.pools.task == "classify" and model.pools.dimensions != 1:
        message = (
            f"The model does not support the Score API: it has {model.pools.dimensions} classes, and the "
            "score of a pair is one number. Ask /classify."
        )
        raise ApiError(message, param="model", code="wrong_task")


def _score_pairs(body: ScoreRequest) -> Pairs:
    return [(Side(one), Side(other)) for one, other in body.pairs]


def _rerank_pairs(body: RerankRequest) -> Pairs:
    query = Side(body.query)
    return [(query, Side(one.text, body.max_tokens_per_doc)) for one in body.documents]


def _score_order(body: ScoreRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
    return _order(_score_pairs(body), body, model, settings, own_id, body.activation)


def _rerank_order(body: RerankRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
    return _order(_rerank_pairs(body), body, model, settings, own_id, body.activation)


def _order(
    pairs: Pairs,
    body: PooledFields,
    model: ServedModel,
    settings: Settings,
    own_id: str,
    activate: bool | None,
) -> Order:
    """A prompt for each pair; of a model that embeds one for each text, none of them twice."""
    assert model.pools is not None
    if model.pools.task == "embed":
        if activate is not None:
            message = "activation is of classifiers; this model embeds, and scores are cosines: leave it out."
            raise ApiError(message, param="activation", code="invalid_value")
        texts = [_read(side, model) for side in _sides(pairs)]
        tokens = [text_tokens(text, body, model, "text", special=True) for text in texts]
        prompts = [pooled_prompt(one) for one in tokens]
        return pooled_order(prompts, body, model, settings, own_id, PoolingParams())
    check_pairs(_num_characters(pairs))
    read = {side: _read(side, model) for side in _sides(pairs)}
    joined = [(read[one], read[other]) for one, other in pairs]
    prompts = [pair_prompt(pair, body, model, settings) for pair in joined]
    return pooled_order(prompts, body, model, settings, own_id, PoolingParams(activate=activate))


def _num_characters(pairs: Pairs) -> int:
    """Of all pairs, each with both of its texts."""
    return sum(len(one.text) + len(other.text) for one, other in pairs)


def _sides(pairs: Pairs) -> list[Side]:
    return list(dict.fromkeys(side for pair in pairs for side in pair))


def _read(side: Side, model: ServedModel) -> str:
    """What is read of a text."""
    text, most = side
    token_ids = [] if most is None else model.encode(text, add_special_tokens=False)
    if most is None or len(token_ids) <= most:
        return text
    return model.tokenizer.decode(token_ids[:most], skip_special_tokens=False)


def _scores(pairs: Pairs, front: Frontend, pooled: Sequence[Pooled]) -> list[float]:
    vectors = [floats(one).tolist() for one in pooled]
    assert front.model.pools is not None
    if front.model.pools.task != "embed":
        return [score for score, *_ in vectors]
    of = dict(zip(_sides(pairs), vectors, strict=True))
    lengths = {side: sqrt(sum(map(mul, vector, vector))) for side, vector in of.items()}
    return [
        sum(map(mul, of[one], of[other])) / max(lengths[one] * lengths[other], 1e-12) for one, other in pairs
    ]


def _write_scores(body: ScoreRequest, front: Frontend, run: Run, pooled: Sequence[Pooled]) -> PairScores:
    scores = _scores(_score_pairs(body), front, pooled)
    data = [PairScore(index=index, score=score) for index, score in enumerate(scores)]
    return PairScores(**head(run), data=data)


def _write_ranking(body: RerankRequest, front: Frontend, run: Run, pooled: Sequence[Pooled]) -> Ranking:
    scores = _scores(_rerank_pairs(body), front, pooled)
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    results = [Ranked(index=index, relevance_score=scores[index]) for index in best]
    for result in results if body.return_documents is not False else ():
        result.document = RankedDocument(text=body.documents[result.index].text)
    return Ranking(id=run.order.request_id, model=run.model, usage=usage(run), results=results)


SCORE = PooledForm(
    "score-",
    ScoreRequest,
    _check,
    _score_order,
    _write_scores,
    num_asked=lambda body: max(len(body.text_1), len(body.text_2)),
    more_bytes=lambda body: _num_characters(_score_pairs(body)),
)
RERANK = PooledForm(
    "rerank-",
    RerankRequest,
    _check,
    _rerank_order,
    _write_ranking,
    num_asked=lambda body: len(body.documents),
    more_bytes=lambda body: _num_characters(_rerank_pairs(body)),
)


async def create_score(request: Request) -> Response:
    return await pool(request, SCORE)


async def rerank(request: Request) -> Response:
    return await pool(request, RERANK)


routes = [
    *(
        InferenceRoute(path, create_score, "POST", body=ScoreRequest, answer=PairScores)
        for path in ("/score", "/v1/score")
    ),
    *(
        InferenceRoute(path, rerank, "POST", body=RerankRequest, answer=Ranking)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
]
