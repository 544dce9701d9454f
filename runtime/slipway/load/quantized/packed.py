"""Small integers in 32-bit words, and what every integer format makes of them."""

from __future__ import annotations

import numpy as np

from slipway.load.arrays import FP32, INT32, INT64, Array, Ints, cast
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.layout import Pieces, check_piece, unfit
from slipway.load.quantized.tensors import Grouped

MIDDLE = {4: 8, 8: 128}
"""The code that stands for 0 where a form is symmetric, by bits."""


def unpacked(words: Array, bits: int) -> Array:
    """words [..., w] int32 → codes [..., w · 32 / bits] uint8; the lowest bits are the first code."""
    octets = octets_of(words).reshape(*words.shape[:-1], -1)
    if bits == 8:
        return octets
    codes = np.empty((*octets.shape, 2), np.uint8)
    np.bitwise_and(octets, 15, out=codes[..., 0])
    np.right_shift(octets, 4, out=codes[..., 1])
    return codes.reshape(*octets.shape[:-1], -1)


def octets_of(words: Array) -> Array:
    """words [..., w] int32 → [..., w, 4] uint8, the lowest bits first."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)


def reordered(codes: Array, order: Ints | None) -> Array:
    """codes [n, k] uint8, with the columns that `order` names from left to right."""
    return codes if order is None else np.take(codes, order, axis=1)


def grouped(
    bits: int,
    group: int,
    codes: Array,
    scales: Array,
    zeros: Array | None = None,
    order: Ints | None = None,
) -> Grouped:
    """The neutral form of w = scale · (code - zero).

    codes   [n, k]          uint8, 0 to 2^bits - 1
    scales  [n, k / group]  of any float type
    zeros   as scales, uint8; None where every one is in the middle
    order   [k]  int32      original column of each stored one
    """
    # With four bits, and scales of 16, sums of code and minimum are exact in fp32.
    minimums = None
    if zeros is not None:
        base = 0 if bits == 4 else MIDDLE[8]
        scales = cast(np.ascontiguousarray(scales), FP32)
        minimums = scales * (base - zeros.astype(np.int16)).astype(np.float32)
    stored = codes if bits == 4 else np.ascontiguousarray(codes ^ np.uint8(MIDDLE[8])).view(np.int8)
    return Grouped(bits, group, stored, scales, minimums, order)


def form_of(
    bits: int, group: int, scales: Array, *, zeros: bool = False, ordered: bool = False
) -> GroupedForm:
    """What `grouped` makes of scales of this type."""
    return GroupedForm(bits, group, zeros, FP32 if zeros else scales.dtype, ordered)


def order_of(name: str, piece: str, pieces: Pieces, k: int, group: int) -> Ints | None:
    """The columns sorted by the group that `piece` gives each, or None where they stand so already.

    → [k] int32, the original column of each sorted one. Raises LoadError unless there are k / group groups
    of `group` columns each.
    """
    if piece not in pieces:
        return None
    check_piece(name, piece, pieces, (k,), [INT32, INT64])
    groups = pieces[piece]
    order = np.argsort(groups, kind="stable")
    expected = np.arange(k) // group
    if not np.array_equal(groups[order], expected):
        raise unfit(name, f"has {piece} that does not deal {k} columns into {k // group} groups of {group}")
    return None if np.array_equal(groups, expected) else order.astype(np.int32)
