"""What every way of storing a matrix provides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from slipway.load.arrays import Array, Ints
from slipway.load.quantized.tensors import Quantized

Rows = Any
"""What is multiplied and what comes out: an array on CPU, a tensor on a device."""


class Scheme(Protocol):
    """One matrix [n, k], as it lies in memory and as it is multiplied.

    Its life: `create`, `load` until all rows are there, `finish`, then `apply` and `rows` for ever.
    """

    def create(self, shape: tuple[int, int]) -> None:
        """Allocate [n, k]; rows that are never loaded are 0."""

    def load(self, rows: Ints, matrix: Array | Quantized) -> None:
        """Place rows of the matrix.

        rows    [m]  where each goes
        matrix  [m, k]  in the checkpoint's type or form; not kept
        """

    def finish(self) -> None:
        """All rows are loaded: bring them into the layout that is multiplied, if they do not lie so."""
        return

    def apply(self, x: Rows, bias: Rows | None = None) -> Rows:
        """x [m, k] → x · Wᵀ + bias [m, n]; a row's result depends on that row alone."""

    def rows(self, ids: Rows) -> Rows:
        """Rows [m, k] of the matrix for ids [m], in fp32 on CPU: an embedding's look-up."""


NewScheme = Callable[[], Scheme]
"""Makes an empty matrix; equal functions make matrices that may be fused."""
