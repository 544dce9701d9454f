"""Checkpoints of compressed-tensors, the format of LLM Compressor.

Format: https://github.com/vllm-project/compressed-tensors. Codes are signed and stored plus 2^(bits - 1).
Packed weights run along the columns and packed zero points along the rows, lowest bits first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slipway.load.arrays import INT8, INT32, INT64, Array
from slipway.load.cut import Cut, words_of
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.layout import Pieces, check_piece, group_of, matrix, unfit
from slipway.load.quantized.packed import MIDDLE, GroupedLayout, order_of, unpacked

WHOLE_TENSOR = 0
"""In place of a group's size: one scale for the whole matrix."""


@dataclass(frozen=True, slots=True)
class PackedLayout(GroupedLayout):
    """`pack-quantized`, and whole integers without quantized activations: w = weight_scale · (code - zero).

    weight_packed      [n, ⌈k · bits / 32⌉]  int32, or `weight` [n, k] int8 where not packed
    weight_scale       [n, k / group], or [1]
    weight_zero_point  as weight_scale, int8, or where packed [⌈n · bits / 32⌉, k / group] int32
    weight_shape       [2], where packed
    weight_g_idx       [k], the group of each column where they were quantized in another order
    group              columns that share a scale, -1 for all of a row, 0 for the whole matrix
    """

    bits: int
    group: int
    symmetric: bool = True
    act_order: bool = False
    packed: bool = True

    @property
    def wanted(self) -> Mapping[str, bool]:
        codes = ("weight_packed", "weight_shape") if self.packed else ("weight",)
        others = {"weight_zero_point": not self.symmetric, "weight_g_idx": self.act_order}
        return dict.fromkeys((*codes, "weight_scale"), True) | others

    def form(self, name: str, pieces: Pieces) -> GroupedForm:
        n, k = self.shape(name, pieces)
        group = group_of(name, k, self.group or -1)
        shape = _scales_shape(pieces["weight_scale"], n, k // group)
        check_piece(name, "weight_scale", pieces, shape)
        if not self.symmetric:
            packed = pieces["weight_zero_point"].dtype == INT32
            zeros = (-(-n * self.bits // 32), k // group) if packed else shape
            check_piece(name, "weight_zero_point", pieces, zeros, [INT8, INT32])
        order = order_of(name, "weight_g_idx", pieces, k, group) if self.act_order else b""
        return self._form(group, pieces["weight_scale"], not self.symmetric, order)

    def promised(self, name: str, k: int) -> GroupedForm:
        group = group_of(name, k, self.group or -1)
        return self.expected(group, not self.symmetric, k if self.act_order else 0)

    def codes(self, pieces: Pieces, cut: Cut) -> Array:
        if not self.packed:
            signed: Array = cut.of(pieces["weight"])
            return signed.view(np.uint8) ^ np.uint8(MIDDLE[8])
        k = int(pieces["weight_shape"][1])
        words, inside = words_of(cut.columns, k, 32 // self.bits)
        return unpacked(pieces["weight_packed"][cut.rows][:, words], self.bits)[:, inside]

    def scales(self, pieces: Pieces, n: int, groups: int) -> Array:
        return _spread(pieces["weight_scale"], n, groups)

    def zeros(self, name: str, pieces: Pieces, n: int, groups: int) -> Array | None:
        if self.symmetric:
            return None
        zeros = pieces["weight_zero_point"]
        if zeros.dtype == INT32:
            return unpacked(zeros.T, self.bits)[:, :n].T
        signed = _spread(zeros, n, groups).astype(np.int16)
        return (signed + MIDDLE[self.bits]).astype(np.uint8)

    def shape(self, name: str, pieces: Pieces) -> tuple[int, int]:
        if not self.packed:
            n, k = matrix(name, "weight", pieces, [INT8]).shape
            return n, k
        words = matrix(name, "weight_packed", pieces, [INT32])
        check_piece(name, "weight_shape", pieces, (2,), [INT32, INT64])
        n, k = pieces["weight_shape"].tolist()
        if (n, -(-k * self.bits // 32)) != tuple(words.shape):
            raise unfit(
                name, f"has weight_packed of shape {list(words.shape)}, and weight_shape says {[n, k]}"
            )
        return n, k


def _scales_shape(scales: Array, n: int, groups: int) -> tuple[int, ...]:
    """How scales may lie: one for all, or [n, groups]; [n] will do for [n, 1]."""
    whole = scales.size == 1 or (groups == 1 and scales.shape == (n,))
    return tuple(scales.shape) if whole else (n, groups)


def _spread(array: Array, n: int, groups: int) -> Array:
    """What `_scales_shape` permits → [n, groups]"""
    return np.broadcast_to(array.reshape(-1, groups if array.size > 1 else 1), (n, groups))
