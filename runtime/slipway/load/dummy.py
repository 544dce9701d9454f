"""Random weights: a model's speed and memory without its files."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from slipway.load.arrays import Array, DType, cast

DEVIATION = 0.02

Drawn = Callable[[tuple[int, ...], int], Any]
"""Draws a matrix N(0, 0.02²) of a shape from a seed: an array, or a tensor where a device draws faster."""


def drawn_on_host(shape: tuple[int, ...], seed: int) -> Array:
    """In fp32."""
    values = np.random.Generator(np.random.SFC64(seed)).standard_normal(shape, np.float32)
    values *= np.float32(DEVIATION)
    return values


def dummy(
    shapes: Mapping[str, tuple[int, ...]], dtype: DType, seed: int, drawn: Drawn
) -> Iterator[tuple[str, Any]]:
    """Weights by name: matrices as `drawn` draws them, norms 1, biases 0, both of `dtype`.

    A matrix depends on seed, name, shape and what draws it alone.
    """
    for name, shape in shapes.items():
        if len(shape) >= 2:
            yield name, drawn(shape, zlib.crc32(f"{seed} {name}".encode()))
        else:
            yield name, cast(np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32), dtype)
