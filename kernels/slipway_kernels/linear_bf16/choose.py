"""Where one of two ways to the same product was measured to be the faster one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Region:
    """Products of one type on one architecture; m, n and k lie between two bounds, both included.

    measured  what was timed, on what, and by how much it won
    """

    arch: int
    dtype: torch.dtype
    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]
    measured: str

    def holds(self, arch: int, dtype: torch.dtype, m: int, n: int, k: int) -> bool:
        if (arch, dtype) != (self.arch, self.dtype):
            return False
        bounds = ((m, self.m), (n, self.n), (k, self.k))
        return all(least <= size <= most for size, (least, most) in bounds)


def chosen(regions: Iterable[Region], arch: int, dtype: torch.dtype, m: int, n: int, k: int) -> bool:
    """Whether one of the regions holds the product x [m, k] · w [n, k]ᵀ."""
    return any(region.holds(arch, dtype, m, n, k) for region in regions)
