"""`POST /score` and `/rerank`: how much texts have to do with each other.

A model that classifies reads a pair as one prompt and says it; of a model that embeds it is the cosine of
the angle between two vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import mul

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.configure import Settings
from slipway.api.errors import ApiError
from slipway.api.frontend import Frontend
from slipway.api.generate import Order, Run
from slipway.api.model import ServedModel
from slipway.api.pooled_prompts import pair_prompt, pooled_order, pooled_prompt, text_tokens
from slipway.api.protocol.pooling import PooledFields, RerankRequest, ScoreRequest
from slipway.api.protocol.pooling_answers import PairScore, PairScores, Ranked, RankedDocument, Ranking
from slipway.api.routes.inference import InferenceRoute
from slipway.api.routes.pooling import PooledForm, check_whole, floats, head, pool, usage
from slipway.engine.messages import Pooled
from slipway.engine.params import PoolingParams

Pairs = Sequence[tuple[str, str]]


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


def _score_order(body: ScoreRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
    return _order(body.pairs, body, model, settings, own_id, body.activation)


def _rerank_order(body: RerankRequest, model: ServedModel, settings: Settings, own_id: str) -> Order:
    pairs = [(body.query, _beginning(one.text, body, model)) for one in body.documents]
    return _order(pairs, body, model, settings, own_id, body.activation)


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
        texts = _texts(pairs)
        tokens = [text_tokens(text, body, model, "text", special=True) for text in texts]
        prompts = [pooled_prompt(one) for one in tokens]
        return pooled_order(prompts, body, model, settings, own_id, PoolingParams())
    prompts = [pair_prompt(pair, body, model, settings) for pair in pairs]
    return pooled_order(prompts, body, model, settings, own_id, PoolingParams(activate=activate))


def _texts(pairs: Pairs) -> list[str]:
    return list(dict.fromkeys(text for pair in pairs for text in pair))


def _beginning(text: str, body: RerankRequest, model: ServedModel) -> str:
    """What is read of a document."""
    most = body.max_tokens_per_doc
    token_ids = [] if most is None else model.encode(text, add_special_tokens=False)
    if most is None or len(token_ids) <= most:
        return text
    return model.tokenizer.decode(token_ids[:most], skip_special_tokens=False)


def _scores(pairs: Pairs, front: Frontend, pooled: Sequence[Pooled]) -> list[float]:
    vectors = [floats(one).tolist() for one in pooled]
    assert front.model.pools is not None
    if front.model.pools.task != "embed":
        return [score for score, *_ in vectors]
    of = dict(zip(_texts(pairs), vectors, strict=True))
    lengths = {text: sqrt(sum(map(mul, vector, vector))) for text, vector in of.items()}
    return [
        sum(map(mul, of[one], of[other])) / max(lengths[one] * lengths[other], 1e-12) for one, other in pairs
    ]


def _write_scores(body: ScoreRequest, front: Frontend, run: Run, pooled: Sequence[Pooled]) -> PairScores:
    scores = _scores(body.pairs, front, pooled)
    data = [PairScore(index=index, score=score) for index, score in enumerate(scores)]
    return PairScores(**head(run), data=data)


def _write_ranking(body: RerankRequest, front: Frontend, run: Run, pooled: Sequence[Pooled]) -> Ranking:
    pairs = [(body.query, _beginning(one.text, body, front.model)) for one in body.documents]
    scores = _scores(pairs, front, pooled)
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    results = [Ranked(index=index, relevance_score=scores[index]) for index in best]
    for result in results if body.return_documents is not False else ():
        result.document = RankedDocument(text=body.documents[result.index].text)
    return Ranking(id=run.order.request_id, model=run.model, usage=usage(run), results=results)


SCORE = PooledForm("score-", ScoreRequest, _check, _score_order, _write_scores)
RERANK = PooledForm("rerank-", RerankRequest, _check, _rerank_order, _write_ranking)


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
