"""Packed weights: floats, and small integers with a scale for each group of columns."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np

from slipway_kernels.cpu.arrays import E4M3, FP16, FP32, INT8, UINT8, Array, DType
from slipway_kernels.cpu.binding import DTYPES, Floats, Ints, WeightStruct, address, library
from slipway_kernels.cpu.memory import Memory
from slipway_kernels.cpu.sources import Source, cast, struct_of
from slipway_kernels.cpu.threads import Threads

INTEGERS = ("int2", "int3", "int4", "int5", "int6", "int8", "iq4", "e2m1")
"""The last two number the entries of a table of 16."""
_PACKED: ContextVar[tuple[WeakSet[Weight], ...]] = ContextVar("packed", default=())


@contextmanager
def packed() -> Iterator[WeakSet[Weight]]:
    """The weights that this thread makes within, as long as they live: those of other threads, and what goes
    meanwhile of earlier ones, do not count."""
    weights: WeakSet[Weight] = WeakSet()
    before = _PACKED.set((*_PACKED.get(), weights))
    try:
        yield weights
    finally:
        _PACKED.reset(before)


class Weight:
    """A matrix [n, k] in blocks of 32 rows, as products read it; rows that are never loaded are 0.

    dtype  fp32, bf16, e4m3, or one of `INTEGERS`
    """

    def __init__(self, struct: WeightStruct, dtype: str) -> None:
        self.n: int = struct.n
        self.k: int = struct.k
        self.dtype = dtype
        self.struct = struct
        self.nbytes: int = library().sw_weight_bytes(ctypes.byref(struct))
        self.memory = Memory(self.nbytes, shared=True)
        struct.at = self.memory.address
        for weights in _PACKED.get():
            weights.add(self)

    @property
    def is_integers(self) -> bool:
        return self.dtype in INTEGERS

    @property
    def element(self) -> str:
        """The type of the rows that it multiplies; integers take those of any."""
        return "bf16" if self.dtype == "e4m3" else self.dtype

    def rows(self, ids: Ints) -> Floats:
        """The rows [len(ids), k] in fp32. Raises ValueError for a row outside the weight."""
        wanted = np.ascontiguousarray(ids, np.int32)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= self.n):
            raise ValueError(f"Rows {wanted.min()} to {wanted.max()} are not all in [0, {self.n}).")
        out = np.empty((len(wanted), self.k), np.float32)
        library().sw_read_rows(ctypes.byref(self.struct), address(wanted), len(wanted), address(out))
        return out

    def _destination(self, shape: Sequence[int], destination_rows: Ints | None) -> Ints:
        """Where each row of a source [rows, k] goes. Raises ValueError where they do not fit."""
        rows, k = shape
        if k != self.k:
            raise ValueError(f"The source has {k} columns, the packed weight {self.k}: they must be equal.")
        if destination_rows is None:
            destination_rows = np.arange(rows, dtype=np.int32)
        destination = np.ascontiguousarray(destination_rows, np.int32)
        if len(destination) != rows:
            raise ValueError(f"{rows} source rows have {len(destination)} destinations: give one each.")
        if rows and (destination.min() < 0 or destination.max() >= (self.n + 31) // 32 * 32):
            raise ValueError(
                f"Destination rows {destination.min()} to {destination.max()} do not fit a weight of "
                f"{self.n} rows."
            )
        return destination


class Packed(Weight):
    """Floats: [n/32][k/2][32][2] in bf16, [n/32][k][32] in fp32."""

    def __init__(self, n: int, k: int, dtype: str) -> None:
        if dtype not in ("fp32", "bf16"):
            raise ValueError(f"A packed weight is fp32 or bf16, not {dtype}.")
        super().__init__(WeightStruct(None, n, k, DTYPES[dtype]), dtype)

    def load_rows(
        self,
        source: Source | Array,
        destination_rows: Ints | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Write rows [rows, k] to the rows named, else to the first; each number is rounded once.

        Raises ValueError where the shape, a row or the element type does not fit.
        """
        rows = source if isinstance(source, Source) else Source(source)
        destination = self._destination(rows.shape, destination_rows)
        struct, keep = struct_of(rows)
        library().sw_pack_rows(
            None if threads is None else threads.pointer,
            *(ctypes.byref(self.struct), ctypes.byref(struct), len(destination), address(destination)),
        )
        del keep


def takes_group(group: int) -> bool:
    """Whether products can read a scale for each `group` columns: a multiple of 32, or 16."""
    return group % 32 == 0 or group == 16


class PackedCodes(Weight):
    """Integers of `bits` (4 or 8): w = scale · code + minimum, a scale for each `group` columns.

    Without minimums a code of four bits means itself less 8. A group is a multiple of 32 columns, 16, or the
    whole row where it is at least k. Scales lie in fp16, or in fp32 where `wide_scales`. Products quantize
    the rows that they multiply to 16 bits for each 32 columns; the layout is in linear/quantized.inl.
    """

    def __init__(
        self,
        n: int,
        k: int,
        bits: int,
        group: int,
        *,
        minimums: bool = False,
        wide_scales: bool = False,
    ) -> None:
        group = min(group, k)
        if bits not in (4, 8):
            raise ValueError(f"Codes have 4 or 8 bits, not {bits}: dequantize them.")
        if group < 1 or not (group == k or takes_group(group)):
            raise ValueError(
                f"A group of {group} columns is neither a multiple of 32 nor 16 nor all {k}: dequantize the "
                "weight."
            )
        self.groups = -(-k // group)
        self.minimums = minimums
        self._scale_type = FP32 if wide_scales else FP16
        dtype = f"int{bits}"
        scales = DTYPES["fp32" if wide_scales else "fp16"]
        super().__init__(WeightStruct(None, n, k, DTYPES[dtype], group, scales, minimums), dtype)

    def load_rows(
        self,
        codes: Array,
        scales: Array,
        minimums: Array | None = None,
        destination_rows: Ints | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Write rows to the rows named, else to the first.

        codes             [rows, k]  uint8 for 4 bits, int8 for 8
        scales, minimums  [rows, groups]  of any float type
        Raises ValueError where a shape, a row or a type does not fit.
        """
        wanted = UINT8 if self.dtype == "int4" else INT8
        if codes.dtype != wanted:
            raise ValueError(f"Codes of {self.dtype} come as {wanted}, not as {codes.dtype}.")
        if (minimums is not None) != self.minimums:
            raise ValueError("Minimums are given where the weight has none, or missing where it has some.")
        destination = self._destination(codes.shape, destination_rows)
        codes = np.ascontiguousarray(codes)
        shape = len(destination), self.groups
        factors = [
            None if values is None else _checked_scales(values, shape, self._scale_type)
            for values in (scales, minimums)
        ]
        library().sw_pack_codes(
            None if threads is None else threads.pointer,
            *(ctypes.byref(self.struct), address(codes), self.k, *map(address, factors)),
            *(len(destination), address(destination)),
        )


def _checked_scales(values: Array, shape: tuple[int, int], dtype: DType) -> Array:
    """Scales or minimums [rows, groups] as the packer reads them. Raises ValueError for another shape."""
    if values.shape != shape:
        found, (rows, groups) = list(values.shape), shape
        raise ValueError(f"Scales of shape {found} do not fit {rows} rows of {groups} groups.")
    return np.ascontiguousarray(cast(values, dtype))


class PackedNarrow(Weight):
    """e4m3 as it is: w = scale · number, a scale for each `group` columns of a row: an even number, or all.

    Products take rows of bf16, as those of bf16 do; the layout is in linear/narrow.inl.
    """

    def __init__(self, n: int, k: int, group: int) -> None:
        group = min(group, k)
        if group < 1 or (group % 2 and group != k):
            raise ValueError(
                f"A group of {group} columns is neither even nor all {k}: dequantize the weight."
            )
        self.groups = -(-k // group)
        super().__init__(WeightStruct(None, n, k, DTYPES["e4m3"], group, DTYPES["fp32"], 0), "e4m3")

    def load_rows(
        self,
        numbers: Array,
        scales: Array,
        destination_rows: Ints | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Write rows [rows, k] of e4m3 to the rows named, else to the first.

        scales  [rows, groups]  of any float type
        Raises ValueError where a shape, a row or a type does not fit.
        """
        if numbers.dtype != E4M3:
            raise ValueError(f"Numbers of e4m3 do not come as {numbers.dtype}.")
        destination = self._destination(numbers.shape, destination_rows)
        numbers = np.ascontiguousarray(numbers)
        scales = _checked_scales(scales, (len(numbers), self.groups), FP32)
        library().sw_pack_codes(
            None if threads is None else threads.pointer,
            *(ctypes.byref(self.struct), address(numbers), self.k, address(scales), None),
            *(len(destination), address(destination)),
        )


@dataclass(frozen=True, slots=True)
class BlockType:
    """A block type of GGUF: how a file has it, and how it is packed."""

    number: int
    columns: int
    """Of a block."""
    nbytes: int
    """Of a block in the file."""
    dtype: str
    scales: str
    group: int = 32
    minimums: bool = False


BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(0, 32, 18, "int4", "fp16"),
    "Q4_1": BlockType(1, 32, 20, "int4", "fp16", minimums=True),
    "Q5_0": BlockType(2, 32, 22, "int5", "fp16"),
    "Q5_1": BlockType(3, 32, 24, "int5", "fp16", minimums=True),
    "Q8_0": BlockType(4, 32, 34, "int8", "fp16"),
    "Q4_K": BlockType(5, 256, 144, "int4", "two levels", minimums=True),
    "Q5_K": BlockType(6, 256, 176, "int5", "two levels", minimums=True),
    "Q6_K": BlockType(7, 256, 210, "int6", "two levels", group=16),
    "IQ4_NL": BlockType(8, 32, 18, "iq4", "fp16"),
    "IQ4_XS": BlockType(9, 256, 136, "iq4", "two levels"),
    "MXFP4": BlockType(10, 32, 17, "e2m1", "e8m0"),
    "Q2_K": BlockType(11, 256, 84, "int2", "nibbles", group=16, minimums=True),
    "Q3_K": BlockType(12, 256, 110, "int3", "two levels", group=16),
}
"""By their names in GGUF, with the numbers that slipway.h gives them."""


class PackedBlocks(Weight):
    """Rows of a block type of GGUF, in as many bits as the file has and at most an eighth of one more."""

    def __init__(self, n: int, k: int, name: str) -> None:
        self.type = kind = BLOCK_TYPES[name]
        if k % kind.columns:
            raise ValueError(f"{k} columns are no whole blocks of {kind.columns}, as {name} has them.")
        struct = WeightStruct(None, n, k, DTYPES[kind.dtype], kind.group, DTYPES[kind.scales], kind.minimums)
        super().__init__(struct, kind.dtype)

    def load_rows(
        self, blocks: Array, destination_rows: Ints | None = None, threads: Threads | None = None
    ) -> None:
        """Write rows [rows, bytes of a row] uint8 to the rows named, else to the first.

        Raises ValueError where the shape, a row or the type does not fit.
        """
        width = self.k // self.type.columns * self.type.nbytes
        if blocks.dtype != UINT8 or blocks.ndim != 2 or blocks.shape[1] != width:
            raise ValueError(
                f"Blocks are {blocks.dtype} of shape {list(blocks.shape)}: {self.k} columns have rows of "
                f"{width} bytes."
            )
        destination = self._destination((len(blocks), self.k), destination_rows)
        blocks = np.ascontiguousarray(blocks)
        library().sw_pack_blocks(
            None if threads is None else threads.pointer,
            *(ctypes.byref(self.struct), self.type.number, address(blocks), width, len(destination)),
            address(destination),
        )
