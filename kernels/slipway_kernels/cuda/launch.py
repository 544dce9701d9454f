"""The one way to start a Triton kernel: on a device, in the interpreter, or as a note of what to compile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from slipway_kernels.cuda import prepared
from slipway_kernels.cuda.bound import Bound
from slipway_kernels.cuda.driver import driver
from slipway_kernels.cuda.specialization import recorded, specialized
from slipway_kernels.cuda.tiles import Tile

GRID_LIMIT = 65535
"""Programs in the second and third dimension of a launch."""


def device_in_use() -> torch.device:
    """CUDA's where there is one, else the CPU, on which the interpreter stands in for it.

    Within a `recording` none: its tensors have no numbers.
    """
    if recorded() is not None:
        return torch.device("meta")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def arch_of(device: torch.device) -> int:
    """Compute capability times ten, as tile tables know it; the interpreter takes Hopper's tiles.

    12.x, Blackwell without its tensor memory, counts as 8.9: it has those instructions and 99 KiB of shared
    memory, where 10.0 has 227.
    """
    capability = capability_of(device)
    return capability if capability < 120 else 89


def capability_of(device: torch.device) -> int:
    """Compute capability times ten: what kernels are compiled for."""
    noted = recorded()
    if noted is not None:
        return noted[0]
    return _capability_of_cuda(device) if device.type == "cuda" else 90


@cache
def _capability_of_cuda(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def launch(kernel: Any, grid: tuple[int, ...], /, *, tile: Tile, **arguments: object) -> None:
    """Run `kernel` over `grid`, its arguments by name beside the tile's constants.

    An empty grid runs nothing. Raises ValueError for tensors that no device reaches where no interpreter is
    active, and for a grid that no device takes.
    """
    if 0 in grid:
        return
    if any(extent > GRID_LIMIT for extent in grid[1:]):
        raise ValueError(
            f"The grid of {kernel.__name__} is {grid}: past its first dimension CUDA takes {GRID_LIMIT} "
            "programs. Put more into the first."
        )
    given = {**tile.constants, **arguments}
    noted = recorded()
    if noted is not None:
        noted[1].append(specialized(kernel, given, tile, noted[0]))
    elif prepared.INTERPRETED:
        kernel[grid](**given)
    else:
        _start(kernel, grid, given, tile)


def _start(kernel: Any, grid: tuple[int, ...], given: Mapping[str, object], tile: Tile) -> None:
    device = next(value.device for value in given.values() if isinstance(value, Tensor))
    _check_reach(given)
    bound = Bound(specialized(kernel, given, tile, capability_of(device)), grid, given, device)
    bound.run([tensor.data_ptr() for tensor in bound.tensors], prepared.stream_of(bound.tensors[0]))
    prepared.note(bound)


def _check_reach(given: Mapping[str, object]) -> None:
    """Raises ValueError where a tensor lies where no kernel reads."""
    for name, value in given.items():
        if not isinstance(value, Tensor) or value.device.type == "cuda":
            continue
        try:
            reached = driver().reaches(value.data_ptr())
        except OSError:
            reached = False
        if not reached:
            raise ValueError(
                f"{name} is on {value.device}, and Triton kernels compute on CUDA tensors. To run them on "
                "CPU tensors, for tests, start Python with TRITON_INTERPRET=1."
            )
