"""A quantized matrix as its checkpoint gives it, before any scheme packs it for a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipway.load.arrays import (
    E4M3,
    FP32,
    INT8,
    UINT8,
    Array,
    DType,
    Floats,
    Ints,
    Source,
    cast,
    converted,
    rounded,
)
from slipway.load.quantized.form import Form, GroupedForm
from slipway_kernels.cpu import Threads


@dataclass(frozen=True, slots=True)
class Grouped:
    """Small integers with a scale for each group of columns: w = scale · code + minimum.

    codes     [n, k]           uint8 for 4 bits (0 to 15), int8 for 8 bits (-128 to 127)
    scales    [n, k / group]   fp16, bf16 or fp32
    minimums  as scales, or None where the form is symmetric: 4-bit codes then mean code - 8
    order     [k]  int32       original column of each stored one (act-order); None: they stand in order
    """

    bits: int
    group: int
    codes: Array
    scales: Array
    minimums: Array | None = None
    order: Ints | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def source(self) -> Source:
        """What a packer reads, its columns in the original order."""
        minimums = None if self.minimums is None else cast(self.minimums, FP32)
        return Source(self.codes, cast(self.scales, FP32), minimums, (1, self.group), self.order)

    def take(self, rows: Ints | slice) -> Grouped:
        """The same form of some rows: a shard, or a permutation."""
        minimums = None if self.minimums is None else self.minimums[rows]
        return Grouped(self.bits, self.group, self.codes[rows], self.scales[rows], minimums, self.order)

    def dequantized(self, dtype: DType) -> Array:
        """[n, k], its columns in the original order."""
        return converted(self.source, dtype)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Eight-bit numbers that are multiplied as they are, by activations of the same type.

    values       [n, k]  e4m3 or int8
    scales       [1] or [n] or, block by block, [n / rows, k / columns]  fp32
    input_scale  []  fp32 of all activations, or None where each token brings its own
    block        rows and columns that share a scale, or None
    """

    values: Array
    scales: Floats
    input_scale: Array | None = None
    block: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def source(self) -> Source:
        """What a packer reads."""
        if self.block is not None:
            return Source(self.values, self.scales, block=self.block)
        return Source(self.values, self.scales.reshape(-1, 1), block=(1, self.shape[1]))

    def dequantized(self, dtype: DType) -> Array:
        """[n, k]"""
        return converted(self.source, dtype)

    def grouped(self) -> Grouped:
        """Integers, not scaled by blocks, with each row as one group."""
        n, k = self.shape
        return Grouped(8, k, self.values, np.broadcast_to(self.scales, (n,))[:, None])


@dataclass(frozen=True, slots=True)
class Unquantized:
    """A plain matrix that whoever packs it is to bring into `form`.

    matrix   [n, k]  any float type; a tensor where a device has drawn it
    through  the model's type, to which the numbers are brought first
    """

    matrix: Array
    form: Form
    through: DType

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    def quantized(self, threads: Threads | None = None) -> Grouped | Scaled:
        """In the form, by rounding to nearest."""
        source, form = Source(self.matrix), self.form
        if isinstance(form, GroupedForm):
            kind = UINT8 if form.bits == 4 else INT8
            parts = rounded(source, kind, form.group, through=self.through, threads=threads)
            return Grouped(form.bits, form.group, *parts)
        values, scales, _ = rounded(source, E4M3, self.shape[1], through=self.through, threads=threads)
        return Scaled(values, scales[:, 0])

    def dequantized(self, dtype: DType) -> Array:
        """[n, k], rounded to the form and back."""
        return self.quantized().dequantized(dtype)


Quantized = Grouped | Scaled | Unquantized
