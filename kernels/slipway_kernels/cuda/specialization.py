"""What a launch needs of the compiler: a kernel with the types of its arguments and its constants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from slipway_kernels.cuda.tiles import Tile

POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.uint32: "*u32",
    torch.int64: "*i64",
    torch.uint64: "*u64",
    torch.bool: "*i1",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
}

ALIGNMENT = 16
"""Bytes that an address, and units that a number, must be a multiple of for the compiler to know it."""


@dataclass(frozen=True, slots=True)
class Specialization:
    """A kernel with the types and constants of one launch: all that compiling it needs.

    types      by argument: `*bf16`, `i32`, `fp32`, or `constexpr`
    constants  values of the constexpr arguments
    aligned    arguments that are multiples of 16
    arch       compute capability, times ten, that it is compiled for
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, object]
    aligned: frozenset[str]
    tile: Tile
    arch: int

    @property
    def key(self) -> str:
        """Equal for launches that one compiled kernel serves, under this version of Triton."""
        parts = (
            *(triton.__version__, self.kernel.cache_key, self.arch, sorted(self.types.items())),
            *(sorted((name, repr(value)) for name, value in self.constants.items()), sorted(self.aligned)),
            *(self.tile.num_warps, self.tile.num_stages, self.tile.fuses),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    @property
    def options(self) -> dict[str, object]:
        """The tile's part of what is compiled, under Triton's names."""
        tile = self.tile
        return {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": tile.fuses}


def specialized(kernel: Any, given: Mapping[str, object], tile: Tile, arch: int) -> Specialization:
    """What Triton would specialize this launch to: ones and None are constants, multiples of 16 are known."""
    types: dict[str, str] = {}
    fixed: dict[str, object] = {}
    aligned = set()
    for parameter in kernel.params:
        name, value = parameter.name, given.get(parameter.name, parameter.default)
        varies = parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1 and not varies):
            types[name], fixed[name] = "constexpr", value
        elif isinstance(value, Tensor):
            types[name] = POINTERS[value.dtype]
            if value.data_ptr() % ALIGNMENT == 0:
                aligned.add(name)
        elif isinstance(value, TensorDescriptor):
            types[name] = f"tensordesc<{POINTERS[value.base.dtype][1:]}{list(value.block_shape)}>"
        elif isinstance(value, bool):
            types[name] = "u1"
        elif isinstance(value, int):
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % ALIGNMENT == 0 and not varies:
                aligned.add(name)
        elif isinstance(value, float):
            types[name] = "fp32"
        else:  # a number of numpy's, taken for a float, would give wrong results
            raise TypeError(f"{name} of {kernel.__name__} is a {type(value).__name__}: give a Python number.")
    return Specialization(kernel, types, fixed, frozenset(aligned), tile, arch)


_recorded: ContextVar[tuple[int, list[Specialization]] | None] = ContextVar("recorded", default=None)


@contextmanager
def recording(arch: int) -> Iterator[list[Specialization]]:
    """Within, launches are noted for that architecture and nothing runs: operations take meta tensors."""
    noted: list[Specialization] = []
    token = _recorded.set((arch, noted))
    try:
        yield noted
    finally:
        _recorded.reset(token)


def recorded() -> tuple[int, list[Specialization]] | None:
    """The architecture of the innermost `recording`, and what it has noted."""
    return _recorded.get()
