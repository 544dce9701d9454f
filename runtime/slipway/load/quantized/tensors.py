"""A quantized matrix as its checkpoint gives it, before any scheme packs it for a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

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
    is_float,
    rounded,
)
from slipway.load.cut import ALL, Cut, Part, numbered, regrouped
from slipway.load.quantized.form import Form, GroupedForm, whole_blocks
from slipway_kernels.cpu import BLOCK_TYPES, Threads


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

    def source(self) -> Source:
        """What a packer reads, its columns in the original order."""
        minimums = None if self.minimums is None else cast(self.minimums, FP32)
        return Source(self.codes, cast(self.scales, FP32), minimums, (1, self.group), self.order)

    def cut(self, cut: Cut) -> Grouped:
        """These rows and columns, of a matrix that has no order of its own."""
        group, groups = regrouped(numbered(cut.columns, self.shape[1]) // self.group)
        minimums = None if self.minimums is None else np.take(self.minimums[cut.rows], groups, axis=1)
        scales = np.take(self.scales[cut.rows], groups, axis=1)
        return Grouped(self.bits, group, cut.of(self.codes), scales, minimums)

    def grouped(self) -> Grouped:
        """As products of integers take it."""
        return self

    def dequantized(self, dtype: DType) -> Array:
        """[n, k], its columns in the original order."""
        return converted(self.source(), dtype)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of a block type of GGUF as the file has them. A scheme packs them as they are, or takes `grouped`.

    name    of the type, one of `BLOCK_TYPES`
    rows    [n, bytes of a row] uint8
    decode  makes the integers and scales of a matrix from its bytes and its shape
    """

    name: str
    rows: Array
    decode: Callable[[Array, tuple[int, int]], Grouped]

    @property
    def shape(self) -> tuple[int, int]:
        kind = BLOCK_TYPES[self.name]
        return len(self.rows), self.rows.shape[1] // kind.nbytes * kind.columns

    def cut(self, cut: Cut) -> Blocks | Grouped:
        """These rows and columns; of columns that are no whole blocks, what they mean."""
        part = replace(self, rows=self.rows[cut.rows])
        if not whole_blocks(cut.columns, self.name):
            return part.grouped().cut(Cut(columns=cut.columns))
        kind, (first, last, _) = BLOCK_TYPES[self.name], cut.columns.indices(self.shape[1])
        return replace(
            part, rows=part.rows[:, first // kind.columns * kind.nbytes : last // kind.columns * kind.nbytes]
        )

    def grouped(self) -> Grouped:
        return self.decode(np.ascontiguousarray(self.rows).reshape(-1), self.shape)

    def source(self) -> Source:
        """What a packer reads."""
        return self.grouped().source()

    def dequantized(self, dtype: DType) -> Array:
        """[n, k]"""
        return self.grouped().dequantized(dtype)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Eight-bit numbers that are multiplied as they are, by activations of the same type.

    values  [n, k]  e4m3 or int8
    scales  [1] or [n] or, block by block, [n / rows, k / columns]  fp32
    block   rows and columns that share a scale, or None
    """

    values: Array
    scales: Floats
    block: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def source(self) -> Source:
        """What a packer reads."""
        if self.block is not None:
            return Source(self.values, self.scales, block=self.block)
        return Source(self.values, self.scales.reshape(-1, 1), block=(1, self.shape[1]))

    def dequantized(self, dtype: DType) -> Array:
        """[n, k]"""
        return converted(self.source(), dtype)

    def cut(self, cut: Cut) -> Scaled:
        """These rows and columns. Raises ValueError where they begin or end within a block."""
        values = cut.of(self.values)
        if self.block is None:
            scales = self.scales if self.scales.size == 1 else self.scales[cut.rows]
        else:
            parts = zip((cut.rows, cut.columns), self.shape, self.block, strict=True)
            scales = Cut(*(_blocks(*part) for part in parts)).of(self.scales)
        return Scaled(values, scales, self.block)

    def grouped(self) -> Grouped:
        """Integers, not scaled by blocks, with each row as one group."""
        return Grouped(8, self.shape[1], self.values, self.scales_of_rows())

    def scales_of_rows(self) -> Floats:
        """[n, groups of columns]"""
        n = len(self.values)
        if self.block is None:
            return np.broadcast_to(self.scales, (n,))[:, None]
        return self.scales.repeat(self.block[0], axis=0)[:n]


@dataclass(frozen=True, slots=True)
class Unquantized:
    """A plain matrix that whoever packs it is to bring into `form`.

    matrix   [n, k]  any float type; a tensor where a device has drawn it
    form     of all k columns: scales do not depend on how they are cut afterwards
    through  the model's type, to which the numbers are brought first
    columns  that are wanted
    """

    matrix: Array
    form: Form
    through: DType
    columns: Part = field(default_factory=lambda: ALL)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], len(numbered(self.columns, self.matrix.shape[1]))

    def quantized(self, threads: Threads | None = None) -> Grouped | Scaled:
        """In the form, by rounding to nearest."""
        source, form = Source(self.matrix), self.form
        if isinstance(form, GroupedForm):
            kind = UINT8 if form.bits == 4 else INT8
            parts = rounded(source, kind, form.group, through=self.through, threads=threads)
            return Grouped(form.bits, form.group, *parts).cut(Cut(columns=self.columns))
        values, scales, _ = rounded(source, E4M3, source.shape[1], through=self.through, threads=threads)
        return Scaled(values, scales[:, 0]).cut(Cut(columns=self.columns))

    def dequantized(self, dtype: DType) -> Array:
        """[n, k], rounded to the form and back."""
        return self.quantized().dequantized(dtype)


Quantized = Grouped | Blocks | Scaled | Unquantized


def in_type(matrix: Array | Quantized, dtype: DType) -> Array:
    """Plain numbers of `dtype`; integers that are no codes keep their type."""
    if isinstance(matrix, Quantized):
        return matrix.dequantized(dtype)
    return cast(matrix, dtype) if is_float(matrix.dtype) else matrix


def _blocks(part: Part, count: int, size: int) -> Part:
    """The blocks of `size` rows, or columns, that a part is made of."""
    if size == 1:
        return part
    if not isinstance(part, slice):
        raise ValueError(f"{size} neighbours share a scale: they cannot stand in another order.")
    begin, end, _ = part.indices(count)
    if begin % size or (end % size and end < count):
        raise ValueError(f"{begin} to {end} of {count} are no whole blocks of {size}, which share a scale.")
    return slice(begin // size, -(-end // size))
