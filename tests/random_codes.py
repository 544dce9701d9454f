"""Quantized layers of which every code and zero occurs."""

from __future__ import annotations

import numpy as np
from quantize import Rounded


def random(
    n: int, k: int, group: int, *, bits: int = 4, symmetric: bool = False, act_order: bool = False
) -> Rounded:
    """Codes and zeros of every value, whatever weights they would come from."""
    draw = np.random.default_rng(n * k + bits)
    size = k if group == -1 else group
    top = 2**bits
    order = draw.permutation(k) if act_order else np.arange(k)
    groups = np.empty(k, np.int32)
    groups[order] = np.arange(k, dtype=np.int32) // size
    zeros = draw.integers(top, size=(n, k // size))
    return Rounded(
        bits,
        draw.integers(top, size=(n, k)),
        (draw.random((n, k // size)) + 0.01).astype(np.float16),
        np.full_like(zeros, top // 2) if symmetric else zeros,
        groups,
    )
