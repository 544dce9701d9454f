"""Weights as they are: bf16 or fp32."""

from __future__ import annotations

from slipway.load.arrays import ELEMENTS, Array, DType, Floats, Ints
from slipway.load.quantized.tensors import Grouped, Quantized, Scaled, Unquantized
from slipway_kernels.cpu import Packed, Threads, linear


class DenseScheme:
    """A bf16 or fp32 matrix, packed for products on CPU row by row as it is read.

    What the checkpoint has quantized is dequantized on the way.
    `threads` pack the weights and compute what `apply` is asked for; None leaves it to the caller's own.
    """

    packed: Packed

    def __init__(self, dtype: DType, threads: Threads | None = None) -> None:
        self._dtype = dtype
        self._threads = threads

    def create(self, shape: tuple[int, int]) -> None:
        self.packed = Packed(*shape, ELEMENTS[self._dtype])

    def load(self, rows: Ints, matrix: Array | Quantized) -> None:
        if isinstance(matrix, Unquantized):
            matrix = matrix.quantized(self._threads)
        source = matrix.source if isinstance(matrix, Grouped | Scaled) else matrix
        self.packed.load_rows(source, rows, self._threads)

    def finish(self) -> None:
        """The rows lie as they are multiplied."""

    def apply(self, x: Array, bias: Array | None = None) -> Floats:
        return linear(x, self.packed, bias, self._threads)

    def rows(self, ids: Ints) -> Floats:
        return self.packed.rows(ids)
