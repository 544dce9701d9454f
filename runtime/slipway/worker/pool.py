"""Pools the final rows of requests: to one vector, to one for each token, to scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.engine.messages import Pooled, Pools
from slipway.engine.params import PoolingParams
from slipway.engine.plan import StepOutput
from slipway.load.arrays import Floats, Ints
from slipway.load.errors import LoadError
from slipway.load.sentence_transformers import Dense, read_dense
from slipway.model.pooling import Pooling
from slipway.model.weights import ModelWeights
from slipway.schemes.fused import FusedLinear
from slipway_kernels.cpu import Packed, Threads
from slipway_kernels.cpu.external import linear

Rows = NDArray[np.floating[Any]]
"""[rows, columns]"""


def _sigmoid(x: Rows) -> Rows:
    shares: Rows = 1.0 / (1.0 + np.exp(-x))
    return shares


def _softmax(x: Rows) -> Rows:
    """Of a single score, for which that would be 1 whatever it is, the softmax beside a score of 0."""
    if x.shape[-1] == 1:
        return _sigmoid(x)
    powers: Rows = np.exp(x - x.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def _normalize(x: Rows) -> Rows:
    """To length 1; a vector of zeros stays what it is."""
    lengths: Rows = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    normed: Rows = x / np.maximum(lengths, 1e-12)
    return normed


ACTIVATIONS: Mapping[str, Callable[[Rows], Rows]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "normalize": _normalize,
}
"""Row by row."""


class Layer(Protocol):
    """Makes of rows [rows, k] others, [rows, n], in fp32: of arrays on a CPU, where a row's result does not
    depend on its company, and of tensors on a device."""

    @property
    def k(self) -> int: ...
    @property
    def n(self) -> int: ...
    def __call__(self, x: Any, /) -> Any: ...


NewLayer = Callable[[Dense], Layer]
"""Holds a layer's weights where it is computed."""


class DenseLayer:
    """activation(x · Wᵀ + b), in fp32."""

    def __init__(self, dense: Dense, threads: Threads) -> None:
        self.n, self.k = dense.weight.shape
        self._weight = Packed(self.n, self.k, "fp32")
        self._weight.load_rows(dense.weight, threads=threads)
        self._bias, self._threads = dense.bias, threads
        self._activate = ACTIVATIONS[dense.activation]

    def __call__(self, x: Floats) -> Floats:
        return self._activate(linear(x, self._weight, self._bias, self._threads)).astype(np.float32)


@dataclass(slots=True)
class _Request:
    """What the rows of a slot have come to so far."""

    params: PoolingParams
    sum: Rows | None = None
    """MEAN: in fp64. CLS, LAST: the row alone."""
    count: int = 0
    """Rows that this is the sum of."""
    parts: list[Floats] = field(default_factory=list)
    """What it is answered with: of ALL and STEP chunk by chunk."""


class Pooler:
    """Follows the slots of a model that pools. `read` comes before the first request.

    A sum runs over a prompt's rows in their order, whatever the chunks, and all else is done row by row: so
    neither chunks nor company change a bit.
    """

    def __init__(self, pooling: Pooling) -> None:
        self.pooling = pooling
        self.row_width = 0
        """Of what is pooled."""
        self.width = 0
        """Of a vector before it is cut."""
        self.layers: list[Layer] = []
        """Behind the pooling, in their order."""
        self._requests: dict[int, _Request] = {}

    @property
    def offer(self) -> Pools:
        pooling = self.pooling
        dimensions = len(pooling.columns) or self.width
        cuts = None if pooling.cuts is None else list(pooling.cuts)
        labels = list(pooling.labels)
        if labels and pooling.columns:
            labels = [labels[column] for column in pooling.columns]
        return Pools(pooling.task, dimensions, pooling.by_token, labels, cuts)

    def read(self, width: int, own: Sequence[Layer], new: NewLayer) -> None:
        """The layers behind the pooling: those of folders beside the model, then its own.

        width  of a final row
        Raises LoadError where they are missing or do not fit.
        """
        beside = [new(read_dense(folder)) for folder in self.pooling.dense]
        self.layers, self.row_width, self.width = [], width, width
        for layer in (*beside, *own):
            if layer.k != self.width:
                raise LoadError(
                    "BadCheckpoint",
                    f"A layer behind the pooling takes {layer.k} numbers, and it is given {self.width}.",
                    hint="The folder mixes two models: fetch it again.",
                )
            self.layers.append(layer)
            self.width = layer.n
        _check(self.pooling.columns, self.width, "scores of the model")

    def start(self, slot: int, params: PoolingParams) -> None:
        """A request takes a slot, or takes one again from its beginning."""
        self._requests[slot] = _Request(params)

    def wanted(self, first: int, tokens: Ints, *, ends: bool) -> slice | Ints:
        """Of rows that a step computes, from position `first` of a prompt on, those that its answer is of.

        tokens  of the rows
        ends    whether the prompt does
        """
        pooling = self.pooling
        if pooling.type == "STEP" and pooling.step_tag_id is not None:
            return np.flatnonzero(tokens == pooling.step_tag_id).astype(np.int32)
        if pooling.type == "LAST":
            return slice(-1, None) if ends else slice(0, 0)
        if pooling.type == "CLS":
            return slice(0, 0 if first else 1)
        return slice(0, None)

    def take(self, slot: int, rows: Floats, *, ends: bool) -> Pooled | None:
        """The next wanted rows of a slot [rows, hidden]; the answer where its prompt ends with them."""
        request = self._requests[slot]
        if self.pooling.by_token:
            self.add(slot, self.scored(rows if self.layers else rows.copy()))
        elif self.pooling.type == "MEAN":
            request.count += len(rows)
            before = np.zeros((1, rows.shape[1])) if request.sum is None else request.sum
            request.sum = np.add.reduce(np.concatenate((before, rows)), axis=0, keepdims=True)
        elif len(rows):
            request.sum, request.count = rows.copy(), 1
        if not ends:
            return None
        if request.sum is not None:
            self.add(slot, self.scored((request.sum / request.count).astype(np.float32)))
        return self.answer(slot)

    def scored(self, rows: Any) -> Any:
        """What the layers make of wanted rows, or of their mean."""
        for layer in self.layers:
            rows = layer(rows)
        return rows

    def add(self, slot: int, vectors: Floats) -> None:
        """The next vectors that a slot's request is answered with [vectors, columns], as the layers leave
        them."""
        self._requests[slot].parts.append(vectors)

    def answer(self, slot: int) -> Pooled:
        """What its vectors come to, whose prompt has ended. It holds no numbers where the rows do."""
        request, pooling = self._requests.pop(slot), self.pooling
        vectors = np.concatenate(request.parts)
        if pooling.columns:
            vectors = vectors[:, list(pooling.columns)]
        vectors = vectors[:, : request.params.dimensions or None]
        if request.params.activate is not False:
            wanted = pooling.activation
            if request.params.activate and pooling.task == "embed":
                wanted = "normalize"
            vectors = ACTIVATIONS[wanted](vectors.astype(np.float64))
        return Pooled(vectors.astype("<f4").tobytes(), vectors.shape[1])


def enter(output: StepOutput, index: int, pooled: Pooled) -> None:
    """An answer in a step's output; one that holds no numbers fails its request."""
    if np.isfinite(np.frombuffer(pooled.values, "<f4")).all():
        output.pooled[index] = pooled
    else:
        output.failed.append(index)


def cpu_rows(matrix: FusedLinear, ids: Ints) -> Floats:
    """Rows [m, k] of a matrix on a CPU."""
    rows: Floats = matrix.whole.rows(ids)
    return rows


def decoder_layers(
    pooling: Pooling, weights: ModelWeights, head_rows: Callable[[Ints], Floats], new: NewLayer
) -> Iterator[Layer]:
    """What a decoder computes scores by. Raises LoadError for tokens that it does not have.

    head_rows  rows of its head, by token
    """
    if pooling.tokens:
        _check(pooling.tokens, weights.head.n, "tokens of the model's vocabulary")
        rows = head_rows(np.array(pooling.tokens, np.int32))
        yield new(Dense(rows[1:] - rows[:1] if pooling.difference else rows, None))
    for number, score in enumerate(weights.scores, 1):
        last = number == len(weights.scores)
        yield new(Dense(score.weight, score.bias, "identity" if last else "relu"))


def _check(ids: tuple[int, ...], count: int, what: str) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < count:
        raise LoadError(
            "UnsupportedModel",
            f"returned_token_ids {list(ids)} are not all {what}, of which there are {count}.",
            hint="Correct --override-pooler-config.",
            argument="override_pooler_config",
        )
