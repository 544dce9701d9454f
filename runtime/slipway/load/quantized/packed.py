"""Small integers in 32-bit words, and what every integer format makes of them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from slipway.load.arrays import FP16, FP32, INT32, INT64, Array, cast
from slipway.load.cut import ALL, WHOLE, Cut, numbered, regrouped
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.layout import Layout, Pieces, check_piece, unfit
from slipway.load.quantized.tensors import Grouped

MIDDLE = {4: 8, 8: 128}
"""The code that stands for 0 where a form is symmetric, by bits."""


class GroupedLayout(Layout):
    """A layout of integers whose columns share scales by groups: w = scale · (code - zero)."""

    bits: int

    @abstractmethod
    def form(self, name: str, pieces: Pieces) -> GroupedForm: ...

    @abstractmethod
    def codes(self, pieces: Pieces, cut: Cut) -> Array:
        """[n, k] uint8, of these rows and columns of the matrix: only their words are unpacked."""

    def scales(self, pieces: Pieces, n: int, groups: int) -> Array:
        """[n, groups] of any float type, of the whole matrix."""
        return pieces["scales"].T

    @abstractmethod
    def zeros(self, name: str, pieces: Pieces, n: int, groups: int) -> Array | None:
        """[n, groups] uint8, of the whole matrix; None where they are symmetric."""

    def read(self, name: str, pieces: Pieces, cut: Cut = WHOLE) -> Grouped:
        """Without columns named they come as they are stored, with their order."""
        form, (n, k) = self.form(name, pieces), self.shape(name, pieces)
        columns = form.columns if cut.columns is ALL else cut.columns
        group, groups = regrouped(form.groups_of(numbered(columns, k)))
        scales = np.take(self.scales(pieces, n, k // form.group)[cut.rows], groups, axis=1)
        zeros, minimums = self.zeros(name, pieces, n, k // form.group), None
        if zeros is not None:
            # With four bits, and scales of 16, sums of code and minimum are exact in fp32.
            base = 0 if self.bits == 4 else MIDDLE[8]
            zeros = np.take(zeros[cut.rows], groups, axis=1).astype(np.int16)
            scales = cast(scales, FP32)
            minimums = scales * (base - zeros).astype(np.float32)
        codes = self.codes(pieces, Cut(cut.rows, columns))
        if self.bits == 8:
            codes = np.ascontiguousarray(codes ^ np.uint8(MIDDLE[8])).view(np.int8)
        order = numbered(columns, k) if form.order and cut.columns is ALL else None
        return Grouped(self.bits, group, codes, scales, minimums, order)

    def expected(self, group: int, zeros: bool, ordered: int = 0) -> GroupedForm:
        """What is known of a form before its pieces: with so many columns in an order of their own, any."""
        order = np.arange(ordered, dtype=np.int32)[::-1].tobytes()
        return GroupedForm(self.bits, group, zeros, FP32 if zeros else FP16, order)

    def _form(self, group: int, scales: Array, zeros: bool, order: bytes = b"") -> GroupedForm:
        """What `read` makes of scales of this type."""
        return GroupedForm(self.bits, group, zeros, FP32 if zeros else scales.dtype, order)


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


def order_of(name: str, piece: str, pieces: Pieces, k: int, group: int) -> bytes:
    """The columns sorted by the group that `piece` gives each, as `GroupedForm.order` has them.

    Raises LoadError unless there are k / group groups of `group` columns each.
    """
    if piece not in pieces:
        return b""
    check_piece(name, piece, pieces, (k,), [INT32, INT64])
    groups = pieces[piece]
    order = np.argsort(groups, kind="stable")
    expected = np.arange(k) // group
    if not np.array_equal(groups[order], expected):
        raise unfit(name, f"has {piece} that does not deal {k} columns into {k // group} groups of {group}")
    return b"" if np.array_equal(groups, expected) else order.astype(np.int32).tobytes()
