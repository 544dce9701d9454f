"""Matrices as files have them: what is packed, converted or rounded, row by row on every thread."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from slipway_kernels.cpu.arrays import BF16, E4M3, ELEMENTS, FP32, INT8, UINT8, Array, DType, is_float
from slipway_kernels.cpu.binding import DTYPES, Floats, Ints, SourceStruct, address, library
from slipway_kernels.cpu.threads import Threads


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix [n, k]: w = scale · number + minimum, or the numbers alone where there are no scales.

    numbers   [n, k]  any type of `ELEMENTS`; uint8 are codes of four bits, which mean themselves less 8 where
                      there are no minimums
    scales    [rows of them, columns of them]  fp32
    minimums  as scales, or None
    block     rows and columns that share a scale; one row of scales is for all rows, whatever it says
    order     [k]  int32, the column of the matrix that each stored one is; None: they stand in order
    """

    numbers: Array
    scales: Floats | None = None
    minimums: Floats | None = None
    block: tuple[int, int] = (1, 1)
    order: Ints | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.numbers.shape[0], self.numbers.shape[1]


def struct_of(source: Source) -> tuple[SourceStruct, object]:
    """The C form, and what must stay alive meanwhile. Raises ValueError for scales that do not fit."""
    numbers = readable(source.numbers)
    if numbers.strides[1] != numbers.itemsize or numbers.strides[0] % numbers.itemsize:
        numbers = np.ascontiguousarray(numbers)
    factors = [
        None if values is None else np.ascontiguousarray(values, np.float32)
        for values in (source.scales, source.minimums)
    ]
    scales, minimums = factors
    n, k = numbers.shape
    rows, columns = source.block
    if scales is not None and scales.shape not in {(1, -(-k // columns)), (-(-n // rows), -(-k // columns))}:
        raise ValueError(
            f"Scales of shape {list(scales.shape)} do not fit a matrix of {n} rows and {k} columns, of which "
            f"{rows} and {columns} share one."
        )
    places = None if source.order is None else np.argsort(source.order).astype(np.int32)
    struct = SourceStruct(
        numbers.ctypes.data,
        numbers.strides[0] // numbers.itemsize,
        DTYPES[ELEMENTS[numbers.dtype]],
        rows,
        columns,
        0 if scales is None or len(scales) == 1 else scales.shape[1],
        address(scales),
        address(minimums),
        address(places),
    )
    return struct, (numbers, scales, minimums, places)


def readable(numbers: Array) -> Array:
    """The same numbers in a type that the kernels read."""
    return numbers if numbers.dtype in ELEMENTS else numbers.astype(np.float32)


def converted(source: Source, dtype: DType, threads: Threads | None = None) -> Array:
    """What a source stands for, [n, k] of any float type, rounded once from fp32."""
    n, k = source.shape
    out = np.empty((n, k), BF16 if dtype == BF16 else FP32)
    struct, keep = struct_of(source)
    library().sw_convert_rows(
        None if threads is None else threads.pointer,
        *(ctypes.byref(struct), n, k, address(out), DTYPES[ELEMENTS[out.dtype]]),
    )
    del keep
    return out.astype(dtype, copy=False)


def cast(array: Array, dtype: DType) -> Array:
    """A float array of any shape in another float type; the array itself where it has that type."""
    if array.dtype == dtype:
        return array
    if not is_float(array.dtype):
        raise ValueError(f"An array of {array.dtype} holds no floats that could be made {dtype}.")
    flat = array.reshape(-1, array.shape[-1] if array.ndim > 1 else max(1, array.size))
    return converted(Source(flat), dtype).reshape(array.shape)


def rounded(
    source: Source, dtype: DType, group: int, *, through: DType, threads: Threads | None = None
) -> tuple[Array, Floats, Floats | None]:
    """Codes [n, k] of a float matrix, with scales and minimums [n, k / group], by rounding to the nearest.

    dtype    uint8: four bits, from the least to the largest of each group in fifteen steps; int8: symmetric,
             -127 to 127; e4m3: up to its largest
    through  the type, fp32 or bf16, to which the numbers are brought before
    Only the first has minimums. Raises ValueError where groups do not divide the columns.
    """
    n, k = source.shape
    if dtype not in (UINT8, INT8, E4M3) or group < 1 or k % group:
        raise ValueError(f"{k} columns cannot be rounded to {dtype} in groups of {group}.")
    codes = np.empty((n, k), dtype)
    scales = np.empty((n, k // group), np.float32)
    minimums = np.empty_like(scales) if dtype == UINT8 else None
    struct, keep = struct_of(source)
    library().sw_round_rows(
        None if threads is None else threads.pointer,
        *(ctypes.byref(struct), n, k, DTYPES["bf16" if through == BF16 else "fp32"]),
        *(DTYPES[ELEMENTS[dtype]], group, address(codes), address(scales), address(minimums)),
    )
    del keep
    return codes, scales, minimums
