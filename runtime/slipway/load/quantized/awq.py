"""AWQ checkpoints, as AutoAWQ's `gemm` version writes them.

Method: Lin et al. 2023, https://arxiv.org/abs/2306.00978. A word holds eight neighbouring output columns of
one input row; from the lowest bits up they are columns 0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slipway.load.arrays import INT32, Array
from slipway.load.cut import Cut, words_of
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.layout import Pieces, check_piece, group_of, matrix
from slipway.load.quantized.packed import GroupedLayout, octets_of

_PLACE = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in its word each column lies."""


@dataclass(frozen=True, slots=True)
class AwqLayout(GroupedLayout):
    """w = scales · (qweight - qzeros), four bits, with scales and zeros by groups of input rows.

    qweight  [k, n / 8]          int32
    qzeros   [k / group, n / 8]  int32; not there where every zero is 8
    scales   [k / group, n]
    """

    group: int
    zero_point: bool = True
    bits: int = 4

    @property
    def wanted(self) -> Mapping[str, bool]:
        return {"qweight": True, "scales": True, "qzeros": self.zero_point}

    def form(self, name: str, pieces: Pieces) -> GroupedForm:
        n, k = self.shape(name, pieces)
        group = group_of(name, k, self.group)
        check_piece(name, "scales", pieces, (k // group, n))
        if "qzeros" in pieces:
            check_piece(name, "qzeros", pieces, (k // group, n // 8), [INT32])
        return self._form(group, pieces["scales"], "qzeros" in pieces)

    def promised(self, name: str, k: int) -> GroupedForm:
        return self.expected(group_of(name, k, self.group), self.zero_point)

    def shape(self, name: str, pieces: Pieces) -> tuple[int, int]:
        k, words = matrix(name, "qweight", pieces, [INT32]).shape
        return words * 8, k

    def codes(self, pieces: Pieces, cut: Cut) -> Array:
        words, inside = words_of(cut.rows, pieces["qweight"].shape[1] * 8, 8)
        return _columns(pieces["qweight"][cut.columns][:, words])[inside]

    def zeros(self, name: str, pieces: Pieces, n: int, groups: int) -> Array | None:
        return _columns(pieces["qzeros"]) if "qzeros" in pieces else None


def _columns(words: Array) -> Array:
    """words [rows, n / 8] → codes [n, rows] uint8"""
    rows, count = words.shape
    octets = octets_of(words.T)
    codes = np.empty((count, 8, rows), np.uint8)
    for column, place in enumerate(_PLACE):
        octet = octets[..., place // 2]
        codes[:, column] = octet >> 4 if place % 2 else octet & 15
    return codes.reshape(count * 8, rows)
