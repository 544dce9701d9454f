"""What every way of storing a matrix provides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from slipway.load.quantized.tensors import Quantized
from slipway_kernels.cpu import Weight


class Scheme(Protocol):
    """One matrix [n, k], as it lies in memory and as it is multiplied.

    Its life: `create`, `load` until all rows are there, `finish`, then `apply` and `rows` for ever.
    """

    def create(self, shape: tuple[int, int]) -> None:
        """Allocate [n, k]; rows that are never loaded are 0."""

    def load(self, rows: Tensor, tensor: Tensor | Quantized) -> None:
        """Place rows of the matrix.

        rows    [m]  int32, where each goes
        tensor  [m, k]  in the checkpoint's type or form; not kept
        """

    def finish(self, device: torch.device) -> None:
        """All rows are loaded: bring them into the layout that `device` multiplies."""

    def apply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [m, k] → x · Wᵀ + bias [m, n]; a row's result depends on that row alone."""

    def rows(self, ids: Tensor) -> Tensor:
        """Rows [m, k] of the matrix in fp32, for ids [m]: an embedding's look-up."""


class PackedScheme(Scheme, Protocol):
    """On CPU a matrix is packed for the lowered program."""

    @property
    def packed(self) -> Weight:
        """What a lowered program multiplies by; from `create` on."""


NewScheme = Callable[[], Scheme]
"""Makes an empty matrix; equal functions make matrices that may be fused."""
