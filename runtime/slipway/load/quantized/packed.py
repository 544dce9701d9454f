"""Small integers in 32-bit words, and what every integer format makes of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.layout import Pieces, check_piece, unfit
from slipway.load.quantized.tensors import Grouped

MIDDLE = {4: 8, 8: 128}
"""The code that stands for 0 where a form is symmetric, by bits."""


def unpacked(words: Tensor, bits: int) -> Tensor:
    """words [..., w] int32 → codes [..., w · 32 / bits] uint8; the lowest bits are the first code."""
    octets = octets_of(words).flatten(-2)
    if bits == 8:
        return octets
    codes = torch.empty(*octets.shape, 2, dtype=torch.uint8)
    torch.bitwise_and(octets, 15, out=codes[..., 0])
    torch.bitwise_right_shift(octets, 4, out=codes[..., 1])
    return codes.flatten(-2)


def octets_of(words: Tensor) -> Tensor:
    """words [..., w] int32 → [..., w, 4] uint8, the lowest bits first."""
    # Flat, since a contiguous tensor may have any stride where its size is 1, and `view` refuses it then.
    return words.flatten().contiguous().view(torch.uint8).view(*words.shape, 4)


def reordered(codes: Tensor, order: Tensor | None) -> Tensor:
    """codes [n, k] uint8, with the columns that `order` names from left to right."""
    if order is None:
        return codes
    # numpy's is six times as fast as torch's on bytes (torch 2.15).
    return torch.from_numpy(np.take(codes.numpy(), order.numpy(), axis=1))


def grouped(
    bits: int,
    group: int,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
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
        scales = scales.float()
        minimums = scales * (base - zeros.to(torch.int16))
    stored = codes if bits == 4 else (codes ^ MIDDLE[8]).view(torch.int8)
    return Grouped(bits, group, stored, scales, minimums, order)


def form_of(
    bits: int, group: int, scales: Tensor, *, zeros: bool = False, ordered: bool = False
) -> GroupedForm:
    """What `grouped` makes of scales of this type."""
    return GroupedForm(bits, group, zeros, torch.float32 if zeros else scales.dtype, ordered)


def order_of(name: str, piece: str, pieces: Pieces, k: int, group: int) -> Tensor | None:
    """The columns sorted by the group that `piece` gives each, or None where they stand so already.

    → [k] int32, the original column of each sorted one. Raises LoadError unless there are k / group groups
    of `group` columns each.
    """
    if piece not in pieces:
        return None
    check_piece(name, piece, pieces, (k,), [torch.int32, torch.int64])
    groups = pieces[piece].long()
    order = torch.argsort(groups, stable=True)
    expected = torch.arange(k) // group
    if not torch.equal(groups[order], expected):
        raise unfit(name, f"has {piece} that does not deal {k} columns into {k // group} groups of {group}")
    return None if torch.equal(groups, expected) else order.to(torch.int32)
