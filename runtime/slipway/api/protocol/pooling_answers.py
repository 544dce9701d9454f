"""The bodies of answers that hold vectors and scores.

Vectors are long: routes write them apart and put them in their place as they are (`msgspec.Raw`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from slipway.api.protocol.answers import AnswerPart, Usage


class PooledHead(AnswerPart, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    usage: Usage


class Embedding(AnswerPart, kw_only=True):
    index: int
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str
    """In base64: little-endian fp32."""


class Embeddings(PooledHead, kw_only=True):
    data: list[Embedding]


class PooledRows(AnswerPart, kw_only=True):
    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float | list[float]] | str
    """One vector, or one for each token; in base64 little-endian fp32, one after another."""


class PooledList(PooledHead, kw_only=True):
    data: list[PooledRows]


class Classification(AnswerPart, kw_only=True):
    index: int
    label: str | None
    """The likeliest."""
    probs: list[float]
    num_classes: int


class Classifications(PooledHead, kw_only=True):
    data: list[Classification]


class PairScore(AnswerPart, kw_only=True):
    index: int
    object: Literal["score"] = "score"
    score: float


class PairScores(PooledHead, kw_only=True):
    data: list[PairScore]


class RankedDocument(AnswerPart, kw_only=True):
    text: str


class Ranked(AnswerPart, kw_only=True):
    index: int
    """The document's, in the request."""
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class Ranking(AnswerPart, kw_only=True):
    id: str
    model: str
    usage: Usage
    results: list[Ranked]
    """The most relevant first."""
