"""AWQ checkpoints, as AutoAWQ's `gemm` version writes them.

Method: Lin et al. 2023, https://arxiv.org/abs/2306.00978. A word holds eight neighbouring output columns of
one input row; from the lowest bits up they are columns 0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipway.load.arrays import INT32, Array
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.layout import Pieces, check_piece, group_of, matrix
from slipway.load.quantized.packed import form_of, grouped, octets_of
from slipway.load.quantized.tensors import Grouped

_PLACE = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in its word each column lies."""


@dataclass(frozen=True, slots=True)
class AwqLayout:
    """w = scales · (qweight - qzeros), four bits, with scales and zeros by groups of input rows.

    qweight  [k, n / 8]          int32
    qzeros   [k / group, n / 8]  int32; not there where every zero is 8
    scales   [k / group, n]
    """

    group: int
    zero_point: bool = True

    @property
    def required(self) -> tuple[str, ...]:
        return ("qweight", "scales", "qzeros") if self.zero_point else ("qweight", "scales")

    @property
    def optional(self) -> tuple[str, ...]:
        return () if self.zero_point else ("qzeros",)

    def form(self, name: str, pieces: Pieces) -> GroupedForm:
        words = matrix(name, "qweight", pieces, [INT32])
        k, n = words.shape[0], words.shape[1] * 8
        group = group_of(name, k, self.group)
        check_piece(name, "scales", pieces, (k // group, n))
        if "qzeros" in pieces:
            check_piece(name, "qzeros", pieces, (k // group, n // 8), [INT32])
        return form_of(4, group, pieces["scales"], zeros="qzeros" in pieces)

    def read(self, name: str, pieces: Pieces) -> Grouped:
        form = self.form(name, pieces)
        zeros = _columns(pieces["qzeros"]) if form.minimums else None
        return grouped(
            4, form.group, _columns(pieces["qweight"]), np.ascontiguousarray(pieces["scales"].T), zeros
        )


def _columns(words: Array) -> Array:
    """words [rows, n / 8] → codes [n, rows] uint8"""
    rows, count = words.shape
    octets = octets_of(words.T)
    codes = np.empty((count, 8, rows), np.uint8)
    for column, place in enumerate(_PLACE):
        octet = octets[..., place // 2]
        codes[:, column] = octet >> 4 if place % 2 else octet & 15
    return codes.reshape(count * 8, rows)
