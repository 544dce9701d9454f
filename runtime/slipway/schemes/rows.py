"""Eight-bit integers with a scale for each row: the W8A8 of compressed-tensors."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.arrays import FP32, INT8, Array, Ints
from slipway.load.quantized.form import GroupedForm, ScaledForm
from slipway.load.quantized.tensors import Quantized, Scaled
from slipway.schemes.grouped import GroupedScheme
from slipway_kernels.cpu import Threads


class RowScheme(GroupedScheme):
    """A `Scaled` matrix of integers as one group of columns a row.

    Its rows are multiplied by integers, as the checkpoint means them to be; activations have a scale for each
    32 columns, which is finer than one for each token.
    """

    def __init__(self, threads: Threads | None = None) -> None:
        super().__init__(GroupedForm(8, 0, scales=FP32), threads)

    @staticmethod
    def takes(form: ScaledForm) -> bool:
        """Whether products can read this form packed: integers whose scales are not for parts of a row."""
        return form.values == INT8 and form.block is None

    def create(self, shape: tuple[int, int]) -> None:
        self._form = replace(self._form, group=shape[1])
        super().create(shape)

    def load(self, rows: Ints, matrix: Array | Quantized) -> None:
        super().load(rows, matrix.grouped() if isinstance(matrix, Scaled) else matrix)
