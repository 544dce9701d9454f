"""The one way to start a Triton kernel: on a device, in the interpreter, or as a note of what to compile.

Tiles are chosen in Python from tables; no kernel is tuned at run time, so that a server starts in seconds and
every kernel that it can launch has been compiled beforehand, by `slipway_kernels.cuda.ahead`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

ARCHITECTURES = (80, 90, 100)
"""Compute capabilities, times ten, that the tile tables speak of: Ampere, Hopper, Blackwell."""

GRID_LIMIT = 65535
"""Programs in the second and third dimension of a launch."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """One row of an operation's tile table; no two are equal.

    arch       smallest architecture that it is for: a device takes the rows of the largest that it reaches
    constants  the kernel's compile-time sizes
    when       what must hold: a number is an upper bound of that fact, a string must equal it
    spills     why this row may spill registers; empty where it may not
    fuses      whether a · b + c may become one operation, rounded once; False where every bit is defined
    """

    arch: int
    constants: Mapping[str, int]
    num_warps: int = 4
    num_stages: int = 2
    when: Mapping[str, int | str] = field(default_factory=dict)
    spills: str = ""
    fuses: bool = True

    def fits(self, facts: Mapping[str, int | str]) -> bool:
        return all(
            facts[name] == bound if isinstance(bound, str) else int(facts[name]) <= bound
            for name, bound in self.when.items()
        )


def pick(tiles: Sequence[Tile], arch: int, **facts: int | str) -> Tile:
    """The first row that fits. Raises ValueError where the table has none.

    Remembered: to look again took a quarter of what an operation takes in Python, which a step of short
    prompts waits for.
    """
    return _picked(tuple(tiles), arch, tuple(facts.items()))


@lru_cache(maxsize=4096)
def _picked(tiles: tuple[Tile, ...], arch: int, known_facts: tuple[tuple[str, int | str], ...]) -> Tile:
    facts = dict(known_facts)
    known = max((tile.arch for tile in tiles if tile.arch <= arch), default=0)
    for tile in tiles:
        if tile.arch == known and tile.fits(facts):
            return tile
    raise ValueError(
        f"no tile for {', '.join(f'{name} {value}' for name, value in facts.items())} on sm_{arch}: "
        "this kernel does not compute that size there."
    )


@dataclass(frozen=True, slots=True)
class Specialization:
    """A kernel with the types and constants of one launch: all that compiling it needs.

    types      by argument: `*bf16`, `i32`, `fp32`, or `constexpr`
    constants  values of the constexpr arguments
    aligned    arguments that are multiples of 16
    """

    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, object]
    aligned: frozenset[str]
    tile: Tile
    arch: int


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


def device_in_use() -> torch.device:
    """CUDA's where there is one, else the CPU, on which the interpreter stands in for it."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def arch_of(device: torch.device) -> int:
    """Compute capability times ten; the interpreter takes Hopper's tiles.

    12.x, Blackwell without its tensor memory, counts as 8.9: it has those instructions and 99 KiB of shared
    memory, where 10.0 has 227.
    """
    noted = _recorded.get()
    if noted is not None:
        return noted[0]
    return _arch_of_cuda(device) if device.type == "cuda" else 90


@cache
def _arch_of_cuda(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor if major < 12 else 89


def launch(kernel: Any, grid: tuple[int, ...], /, *, tile: Tile, **arguments: object) -> None:
    """Run `kernel` over `grid`, its arguments by name beside the tile's constants.

    An empty grid runs nothing. Raises ValueError for tensors on a CPU where no interpreter is active, and for
    a grid that no device takes.
    """
    if 0 in grid:
        return
    if any(extent > GRID_LIMIT for extent in grid[1:]):
        raise ValueError(
            f"The grid of {kernel.__name__} is {grid}: past its first dimension CUDA takes {GRID_LIMIT} "
            "programs. Put more into the first."
        )
    noted = _recorded.get()
    if noted is not None:
        noted[1].append(_specialization(kernel, {**tile.constants, **arguments}, tile, noted[0]))
        return
    tensors = (value for value in arguments.values() if isinstance(value, Tensor))
    if not _interpreted(kernel) and any(tensor.device.type == "cpu" for tensor in tensors):
        raise ValueError(
            "Triton kernels compute on CUDA tensors. To run them on CPU tensors, for tests, start Python "
            "with TRITON_INTERPRET=1."
        )
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": tile.fuses}
    kernel[grid](**arguments, **tile.constants, **options)


def _interpreted(kernel: Any) -> bool:
    return type(kernel).__name__ == "InterpretedFunction"


def _specialization(kernel: Any, given: Mapping[str, object], tile: Tile, arch: int) -> Specialization:
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
            aligned.add(name)
        elif isinstance(value, TensorDescriptor):
            types[name] = f"tensordesc<{POINTERS[value.base.dtype][1:]}{list(value.block_shape)}>"
        elif isinstance(value, bool):
            types[name] = "u1"
        elif isinstance(value, int):
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not varies:
                aligned.add(name)
        else:
            types[name] = "fp32"
    return Specialization(kernel, types, fixed, frozenset(aligned), tile, arch)
