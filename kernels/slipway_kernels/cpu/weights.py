"""Packed weights: floats, and small integers with a scale for each group of columns."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from slipway_kernels.cpu.binding import DTYPES, Floats, Ints, WeightStruct, address, library
from slipway_kernels.cpu.memory import Memory
from slipway_kernels.cpu.threads import Threads

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

ELEMENTS = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


class Weight:
    """A matrix [n, k] in blocks of 32 rows, as products read it; rows that are never loaded are 0.

    dtype  fp32, bf16, int4 or int8
    """

    def __init__(self, struct: WeightStruct, dtype: str) -> None:
        self.n: int = struct.n
        self.k: int = struct.k
        self.dtype = dtype
        self.struct = struct
        self.nbytes: int = library().sw_weight_bytes(ctypes.byref(struct))
        self.memory = Memory(self.nbytes, shared=True)
        struct.at = self.memory.address

    @property
    def is_integers(self) -> bool:
        return self.dtype in ("int4", "int8")

    def rows(self, ids: Ints | Tensor) -> Floats:
        """The rows [len(ids), k] in fp32. Raises ValueError for a row outside the weight."""
        wanted = np.ascontiguousarray(ids, np.int32)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= self.n):
            raise ValueError(f"Rows {wanted.min()} to {wanted.max()} are not all in [0, {self.n}).")
        out = np.empty((len(wanted), self.k), np.float32)
        library().sw_read_rows(ctypes.byref(self.struct), address(wanted), len(wanted), address(out))
        return out

    def _destination(self, shape: Sequence[int], destination_rows: Ints | Tensor | None) -> Ints:
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

    def __init__(self, n: int, k: int, dtype: str | torch.dtype) -> None:
        dtype = ELEMENTS.get(str(dtype), str(dtype))
        if dtype not in ("fp32", "bf16"):
            raise ValueError(f"A packed weight is fp32 or bf16, not {dtype}.")
        super().__init__(WeightStruct(None, n, k, DTYPES[dtype]), dtype)

    def load_rows(
        self,
        source: Tensor | NDArray[np.generic],
        destination_rows: Ints | Tensor | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Write rows [rows, k] of fp32, bf16 or fp16 (torch or numpy) to the rows named, else to the first.

        Raises ValueError where the shape, a row or the element type does not fit.
        """
        at, element, stride, keep = source_of(source)
        destination = self._destination(source.shape, destination_rows)
        library().sw_pack_rows(
            None if threads is None else threads.pointer,
            *(ctypes.byref(self.struct), at, element, stride, len(destination), address(destination)),
        )
        del keep


class PackedCodes(Weight):
    """Integers of `bits` (4 or 8): w = scale · code + minimum, a scale for each `group` columns.

    Without minimums a code of four bits means itself less 8. A group is a multiple of 32 columns, or the
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
        if group < 1 or (group % 32 and group != k):
            raise ValueError(
                f"A group of {group} columns is neither a multiple of 32 nor all {k}: dequantize the weight."
            )
        self.groups = -(-k // group)
        self.minimums = minimums
        self._scale_type = np.dtype(np.float32 if wide_scales else np.float16)
        dtype = f"int{bits}"
        scales = DTYPES["fp32" if wide_scales else "fp16"]
        super().__init__(WeightStruct(None, n, k, DTYPES[dtype], group, scales, minimums), dtype)

    def load_rows(
        self,
        codes: Tensor,
        scales: Tensor,
        minimums: Tensor | None = None,
        destination_rows: Ints | Tensor | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Write rows to the rows named, else to the first.

        codes             [rows, k]  uint8 for 4 bits, int8 for 8
        scales, minimums  [rows, groups]  of any float type
        Raises ValueError where a shape, a row or a type does not fit.
        """
        wanted = "torch.uint8" if self.dtype == "int4" else "torch.int8"
        if str(codes.dtype) != wanted:
            raise ValueError(f"Codes of {self.dtype} come as {wanted}, not as {codes.dtype}.")
        if (minimums is not None) != self.minimums:
            raise ValueError("Minimums are given where the weight has none, or missing where it has some.")
        destination = self._destination(codes.shape, destination_rows)
        codes = codes.detach().contiguous()
        factors = [self._scales(values, len(destination)) for values in (scales, minimums)]
        library().sw_pack_codes(
            None if threads is None else threads.pointer,
            *(ctypes.byref(self.struct), codes.data_ptr(), self.k, *map(address, factors)),
            *(len(destination), address(destination)),
        )

    def _scales(self, values: Tensor | None, rows: int) -> NDArray[np.generic] | None:
        if values is None:
            return None
        if tuple(values.shape) != (rows, self.groups):
            shape = list(values.shape)
            raise ValueError(f"Scales of shape {shape} do not fit {rows} rows of {self.groups} groups.")
        if "bfloat16" in str(values.dtype):  # which numpy lacks
            values = values.float()
        return np.ascontiguousarray(values.detach().numpy(), self._scale_type)


def source_of(source: Tensor | NDArray[np.generic]) -> tuple[int, int, int, object]:
    """Address, element type, row stride in elements, and what must stay alive meanwhile."""
    if isinstance(source, np.ndarray):
        if source.dtype not in (np.float32, np.float16):
            source = source.astype(np.float32)
        array = np.ascontiguousarray(source)
        element = DTYPES["fp32" if array.dtype == np.float32 else "fp16"]
        return array.ctypes.data, element, array.shape[1], array
    tensor = source.detach()
    if str(tensor.dtype) not in ELEMENTS:
        tensor = tensor.float()
    if tensor.stride(1) != 1:
        tensor = tensor.contiguous()
    return tensor.data_ptr(), DTYPES[ELEMENTS[str(tensor.dtype)]], tensor.stride(0), tensor
