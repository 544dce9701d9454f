"""Random weights: a model's speed and memory without its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from slipway.load.arrays import Array

DEVIATION = 0.02

Drawn = Callable[[tuple[int, ...], int], Any]
"""Draws a matrix N(0, 0.02²) of a shape from a seed: an array, or a tensor where a device draws faster."""


def drawn_on_host(shape: tuple[int, ...], seed: int) -> Array:
    """In fp32."""
    values = np.random.Generator(np.random.SFC64(seed)).standard_normal(shape, np.float32)
    values *= np.float32(DEVIATION)
    return values
