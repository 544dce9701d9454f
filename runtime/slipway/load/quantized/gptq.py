"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them.

Method: Frantar et al. 2022, https://arxiv.org/abs/2210.17323. Words run along the input rows, lowest bits
first. Zero points are stored less one, except in the newer form that calls itself `gptq_v2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slipway.load.arrays import INT32, Array
from slipway.load.cut import Cut, words_of
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.layout import Pieces, check_piece, group_of, matrix, unfit
from slipway.load.quantized.packed import MIDDLE, GroupedLayout, order_of, unpacked


@dataclass(frozen=True, slots=True)
class GptqLayout(GroupedLayout):
    """w = scales · (qweight - zeros), with scales and zeros by groups of input rows.

    qweight  [k · bits / 32, n]          int32
    qzeros   [k / group, n · bits / 32]  int32
    scales   [k / group, n]
    g_idx    [k]  int32, the group of each input row; without act-order it may be left out
    """

    bits: int
    group: int
    symmetric: bool = True
    act_order: bool = False
    zeros_less_one: bool = True

    @property
    def wanted(self) -> Mapping[str, bool]:
        return {"qweight": True, "qzeros": True, "scales": True, "g_idx": self.act_order}

    def form(self, name: str, pieces: Pieces) -> GroupedForm:
        n, k = self.shape(name, pieces)
        group = group_of(name, k, self.group)
        check_piece(name, "scales", pieces, (k // group, n))
        check_piece(name, "qzeros", pieces, (k // group, n * self.bits // 32), [INT32])
        order = order_of(name, "g_idx", pieces, k, group)
        return self._form(group, pieces["scales"], not self.symmetric, order)

    def promised(self, name: str, k: int) -> GroupedForm:
        return self.expected(group_of(name, k, self.group), not self.symmetric, k if self.act_order else 0)

    def shape(self, name: str, pieces: Pieces) -> tuple[int, int]:
        words, n = matrix(name, "qweight", pieces, [INT32]).shape
        return n, words * 32 // self.bits

    def codes(self, pieces: Pieces, cut: Cut) -> Array:
        each = 32 // self.bits
        words, inside = words_of(cut.columns, len(pieces["qweight"]) * each, each)
        return unpacked(pieces["qweight"][words].T[cut.rows], self.bits)[:, inside]

    def zeros(self, name: str, pieces: Pieces, n: int, groups: int) -> Array | None:
        """None where they are symmetric, as config.json says."""
        zeros = unpacked(pieces["qzeros"], self.bits)
        if self.zeros_less_one:
            zeros = (zeros + np.uint8(1)) & np.uint8(2**self.bits - 1)
        if not self.symmetric:
            return zeros.T
        if (zeros != MIDDLE[self.bits]).any():
            raise unfit(
                name,
                f"has zero points other than {MIDDLE[self.bits]}, and config.json calls it symmetric",
                'If they are right, give --hf-overrides \'{"quantization_config": {"sym": false}}\'.',
            )
        return None
