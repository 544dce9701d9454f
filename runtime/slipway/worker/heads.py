"""What encoders compute of a pooled row: the scores of a classifier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from slipway.load.arrays import Floats
from slipway.load.sentence_transformers import Dense
from slipway.model.encoder_spec import EncoderSpec
from slipway.worker.pool import DenseLayer
from slipway_kernels.cpu import Threads

_erf = np.frompyfunc(math.erf, 1, 1)

ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2)).astype(np.float32)) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}


class Classifier:
    """Of pooled rows [rows, k] the scores [rows, n], classifier(norm(act(dense(x)))), in fp32: before any
    softmax or sigmoid. A row's scores depend on that row alone."""

    def __init__(self, spec: EncoderSpec, arrays: Mapping[str, Floats], threads: Threads) -> None:
        """`arrays` are those of `EncoderWeights`. Raises ValueError for an encoder without a classifier."""
        head = spec.classifier
        if head is None:
            raise ValueError(f"{spec.architecture} has no classifier.")
        self.k, self.n = spec.hidden, head.labels
        self._activate = ACTIVATIONS[head.activation]
        self._dense = _product(arrays, "head_dense", threads)
        self._norm = (arrays["head_norm.weight"], arrays.get("head_norm.bias")) if head.norm else None
        self._eps = spec.norm_eps
        self._scores = _product(arrays, "classifier", threads)

    def __call__(self, pooled: Floats) -> Floats:
        inner = self._activate(self._dense(pooled))
        if self._norm is not None:
            inner = _layer_norm(inner, self._eps, *self._norm)
        return self._scores(inner)


def _product(arrays: Mapping[str, Floats], role: str, threads: Threads) -> DenseLayer:
    return DenseLayer(Dense(arrays[f"{role}.weight"], arrays.get(f"{role}.bias")), threads)


def _layer_norm(x: Floats, eps: float, weight: Floats, bias: Floats | None) -> Floats:
    centred = x - x.mean(-1, keepdims=True)
    normed: Floats = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps) * weight
    return normed if bias is None else normed + bias
