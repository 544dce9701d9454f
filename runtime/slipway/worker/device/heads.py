"""Layers behind the pooling on the device: a vector for each token is scored before it goes to the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slipway.load.arrays import Floats, Ints
from slipway.load.sentence_transformers import Dense
from slipway.load.torch_arrays import tensor
from slipway.model.encoder_spec import EncoderSpec
from slipway.schemes.fused import FusedLinear
from slipway.worker.device.products import Move, scheme_of
from slipway.worker.pool import Layer

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


class DeviceLayer(Layer, Protocol):
    """A layer whose weights lie on the device: of tensors it makes tensors there."""

    def move(self, to: Move) -> None:
        """Have `to(tensor)` in the place of each matrix."""


class DenseOnDevice:
    """activation(x · Wᵀ + b), in fp32."""

    def __init__(self, dense: Dense, device: torch.device) -> None:
        self.n, self.k = dense.weight.shape
        self._weight = tensor(dense.weight).to(device)
        self._bias = None if dense.bias is None else tensor(dense.bias).to(device)
        self._activate = ACTIVATIONS[dense.activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self._activate(functional.linear(x, self._weight, self._bias))

    def move(self, to: Move) -> None:
        self._weight = to(self._weight)


class ClassifierOnDevice:
    """Of pooled rows [rows, k] the scores [rows, n], classifier(norm(act(dense(x)))), in fp32."""

    def __init__(self, spec: EncoderSpec, arrays: Mapping[str, Floats], device: torch.device) -> None:
        """`arrays` are those of `EncoderWeights`. Raises ValueError for an encoder without a classifier."""
        head = spec.classifier
        if head is None:
            raise ValueError(f"{spec.architecture} has no classifier.")

        def dense(role: str, activation: str = "identity") -> DenseOnDevice:
            return DenseOnDevice(
                Dense(arrays[f"{role}.weight"], arrays.get(f"{role}.bias"), activation), device
            )

        self.k, self.n = spec.hidden, head.labels
        self._dense, self._scores = dense("head_dense", head.activation), dense("classifier")
        weight, bias = arrays.get("head_norm.weight"), arrays.get("head_norm.bias")
        self._norm_weight = None if weight is None else tensor(weight).to(device)
        self._norm_bias = None if bias is None else tensor(bias).to(device)
        self._eps = spec.norm_eps

    def __call__(self, pooled: Tensor) -> Tensor:
        inner = self._dense(pooled)
        if self._norm_weight is not None:
            inner = functional.layer_norm(inner, (self.k,), self._norm_weight, self._norm_bias, self._eps)
        return self._scores(inner)

    def move(self, to: Move) -> None:
        self._dense.move(to)
        self._scores.move(to)


def device_rows(matrix: FusedLinear, ids: Ints, device: torch.device) -> Floats:
    """Rows [m, k] of a matrix on the device, in fp32 on the host."""
    rows = scheme_of(matrix.parts[0]).rows(tensor(ids).to(device))
    found: Floats = rows.float().cpu().numpy()
    return found


def stored_rows(ids: Ints, matrix: FusedLinear, *, whole: bool = True) -> Floats:
    """The same in the thread that reads adapters, which launches none of our kernels beside the steps'. NaN
    where the matrix is quantized, or not whole here: its rows are none that an adapter has."""
    found = scheme_of(matrix.parts[0]).stored(tensor(ids).long()) if whole else None
    if found is None:
        return np.full((len(ids), matrix.k), np.nan, np.float32)
    rows: Floats = found.float().cpu().numpy()
    return rows
