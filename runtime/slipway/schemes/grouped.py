"""Small integers with a scale for each group of columns, multiplied as they are stored."""

from __future__ import annotations

from slipway.load.arrays import FP16, Array, Floats, Ints
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.tensors import Grouped, Quantized, Unquantized
from slipway_kernels.cpu import PackedCodes, Threads, linear


class GroupedScheme:
    """A matrix of one `GroupedForm`: GGUF's Q4 to Q8, AWQ, GPTQ and compressed-tensors weights.

    Products quantize the rows that they multiply to 16 bits, with a scale for each 32 columns. `threads` pack
    the weights and compute what `apply` is asked for; None leaves it to the caller's own.
    """

    packed: PackedCodes

    def __init__(self, form: GroupedForm, threads: Threads | None = None) -> None:
        self._form = form
        self._threads = threads

    @staticmethod
    def fits(form: GroupedForm) -> bool:
        """Whether products can read this form packed: columns in order, a scale for a multiple of 32."""
        return form.bits in (4, 8) and not form.ordered and form.group % 32 == 0

    def create(self, shape: tuple[int, int]) -> None:
        form = self._form
        wide = form.scales != FP16
        self.packed = PackedCodes(*shape, form.bits, form.group, minimums=form.minimums, wide_scales=wide)

    def load(self, rows: Ints, matrix: Array | Quantized) -> None:
        if isinstance(matrix, Unquantized):
            matrix = matrix.quantized(self._threads)
        if not isinstance(matrix, Grouped):
            raise ValueError(f"{type(matrix).__name__} came where {self._form} was promised.")
        self.packed.load_rows(matrix.codes, matrix.scales, matrix.minimums, rows, self._threads)

    def finish(self) -> None:
        """The rows lie as they are multiplied."""

    def apply(self, x: Array, bias: Array | None = None) -> Floats:
        return linear(x, self.packed, bias, self._threads)

    def rows(self, ids: Ints) -> Floats:
        return self.packed.rows(ids)
