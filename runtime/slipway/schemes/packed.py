"""Matrices on CPU, packed for its products."""

from __future__ import annotations

from slipway.load.arrays import E4M3, ELEMENTS, FP16, FP32, Array, DType, Floats, Ints
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.load.quantized.tensors import Blocks, Quantized, Scaled, Unquantized
from slipway.schemes.scheme import Scheme
from slipway_kernels.cpu import (
    Packed,
    PackedBlocks,
    PackedCodes,
    PackedNarrow,
    Threads,
    linear,
    takes_group,
)


class CpuScheme(Scheme):
    """Plain numbers of `dtype`, or where `form` is given integers or e4m3, multiplied as they are.

    Integers are GGUF's, in blocks exactly as the file has them, AWQ, GPTQ, compressed-tensors' weights, and
    its W8A8, whose rows are each one group of columns. Their products quantize the rows that they multiply to
    16 bits with a scale for each 32 columns, which is finer than one for each token. What multiplies e4m3
    stays bf16. Without `form` what is quantized is dequantized as it is read.
    `threads` pack the weights and compute what `apply` is asked for; None leaves it to the caller's own.
    """

    packed: Packed | PackedBlocks | PackedCodes | PackedNarrow

    def __init__(self, dtype: DType, form: Form | None = None, threads: Threads | None = None) -> None:
        self._dtype = dtype
        self._form = form
        self._threads = threads

    @staticmethod
    def fits(form: Form) -> bool:
        """Whether products can read this form packed: its columns are in order, and its groups are taken."""
        if isinstance(form, ScaledForm):
            return form.block is None or (form.values == E4M3 and form.block[1] % 2 == 0)
        if form.blocks:
            return True
        return form.bits in (4, 8) and takes_group(form.group) and not form.order

    def create(self, shape: tuple[int, int]) -> None:
        form = self._form
        if form is None:
            self.packed = Packed(*shape, ELEMENTS[self._dtype])
            return
        if isinstance(form, ScaledForm) and form.values == E4M3:
            self.packed = PackedNarrow(*shape, form.block[1] if form.block else shape[1])
            return
        if isinstance(form, ScaledForm):
            form = GroupedForm(8, shape[1], scales=FP32)
        if form.blocks:
            self.packed = PackedBlocks(*shape, form.blocks)
            return
        wide = form.scales != FP16
        self.packed = PackedCodes(*shape, form.bits, form.group, minimums=form.minimums, wide_scales=wide)

    def load(self, rows: Ints, matrix: Array | Quantized) -> None:
        if isinstance(matrix, Unquantized):
            matrix = matrix.quantized(self._threads)
        if isinstance(self.packed, PackedBlocks):
            if not isinstance(matrix, Blocks):
                raise ValueError(f"Other numbers came where blocks of {self._form} were promised.")
            self.packed.load_rows(matrix.rows, rows, self._threads)
        elif isinstance(self.packed, Packed):
            source = matrix.source() if isinstance(matrix, Quantized) else matrix
            self.packed.load_rows(source, rows, self._threads)
        elif isinstance(self.packed, PackedNarrow):
            if not isinstance(matrix, Scaled):
                raise ValueError(f"Other numbers came where {self._form} was promised.")
            self.packed.load_rows(matrix.values, matrix.scales_of_rows(), rows, self._threads)
        elif isinstance(matrix, Quantized):
            given = matrix.grouped()
            self.packed.load_rows(given.codes, given.scales, given.minimums, rows, self._threads)
        else:
            raise ValueError(f"Plain numbers came where {self._form} was promised.")

    def apply(self, x: Array, bias: Array | None = None) -> Floats:
        return linear(x, self.packed, bias, self._threads)

    def rows(self, ids: Ints) -> Floats:
        return self.packed.rows(ids)
