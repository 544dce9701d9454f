"""Pieces that the block decoders share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.void]
"""Blocks of one type, as records with that type's fields."""
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[Any]

SUPER = 256
"""Weights in a block of the K and IQ types."""


def floats(field: Integers) -> Floats:
    """The field in fp32, with its last axis kept where it is one number a block: [n] → [n, 1]."""
    wide: Floats = field.astype(np.float32)
    return wide[:, None] if wide.ndim == 1 else wide


def bits(field: Integers, shifts: tuple[int, ...], mask: int, group: int) -> Integers:
    """Unpack several small numbers from each element.

    field   [n, k], taken in groups of `group` elements
    Returns [n, k · len(shifts)]: of each group, all elements' numbers at the first shift, then at
    the second, and so on.
    """
    kind = field.dtype.type
    grouped = field.reshape(len(field), -1, 1, group)
    shift = np.array(shifts, dtype=kind)[:, None]
    unpacked: Integers = (grouped >> shift) & kind(mask)
    return unpacked.reshape(len(field), -1)


def nibbles(field: Integers, group: int) -> Integers:
    """Low, then high four bits of each group of bytes: [n, k] → [n, 2k]."""
    return bits(field, (0, 4), 15, group)


def scaled(q: Integers, scale: Floats, minimum: Floats | None = None) -> Floats:
    """q · scale (+ minimum): q [n, w] in fp32, scale and minimum [n, s], each for w / s weights."""
    wide = q.astype(np.float32).reshape(*scale.shape, -1)
    wide *= scale[..., None]
    if minimum is not None:
        wide += minimum[..., None]
    return wide.reshape(len(q), -1)
