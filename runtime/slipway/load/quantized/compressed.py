"""Checkpoints of compressed-tensors, the format of LLM Compressor.

Format: https://github.com/vllm-project/compressed-tensors. Codes are signed and stored plus 2^(bits - 1).
Packed weights run along the columns and packed zero points along the rows, lowest bits first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipway.load.arrays import E4M3, INT8, INT32, INT64, Array
from slipway.load.quantized.form import GroupedForm, ScaledForm
from slipway.load.quantized.fp8 import check_factors, check_single, scaled
from slipway.load.quantized.layout import Pieces, check_piece, group_of, matrix, unfit
from slipway.load.quantized.packed import MIDDLE, form_of, grouped, order_of, reordered, unpacked
from slipway.load.quantized.tensors import Grouped, Scaled

WHOLE_TENSOR = 0
"""In place of a group's size: one scale for the whole matrix."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
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
    def required(self) -> tuple[str, ...]:
        codes = ("weight_packed", "weight_shape") if self.packed else ("weight",)
        zeros = () if self.symmetric else ("weight_zero_point",)
        return (*codes, "weight_scale", *zeros, *(("weight_g_idx",) if self.act_order else ()))

    @property
    def optional(self) -> tuple[str, ...]:
        unused = () if self.act_order else ("weight_g_idx",)
        return (*unused, "weight_zero_point") if self.symmetric else unused

    def form(self, name: str, pieces: Pieces) -> GroupedForm:
        n, k = self._shape(name, pieces)
        group = group_of(name, k, self.group or -1)
        shape = _scales_shape(pieces["weight_scale"], n, k // group)
        check_piece(name, "weight_scale", pieces, shape)
        if not self.symmetric:
            packed = pieces["weight_zero_point"].dtype == INT32
            zeros = (-(-n * self.bits // 32), k // group) if packed else shape
            check_piece(name, "weight_zero_point", pieces, zeros, [INT8, INT32])
        order = order_of(name, "weight_g_idx", pieces, k, group) if self.act_order else None
        return form_of(
            self.bits, group, pieces["weight_scale"], zeros=not self.symmetric, ordered=order is not None
        )

    def read(self, name: str, pieces: Pieces) -> Grouped:
        form = self.form(name, pieces)
        n, k = self._shape(name, pieces)
        if self.packed:
            codes = unpacked(pieces["weight_packed"], self.bits)[:, :k]
        else:
            codes = pieces["weight"].view(np.uint8) ^ np.uint8(MIDDLE[8])
        order = order_of(name, "weight_g_idx", pieces, k, form.group) if self.act_order else None
        codes = reordered(codes, order)
        scales = _spread(pieces["weight_scale"], n, k // form.group)
        zeros = None if self.symmetric else self._zeros(pieces["weight_zero_point"], n, k // form.group)
        return grouped(self.bits, form.group, codes, scales, zeros, order)

    def _shape(self, name: str, pieces: Pieces) -> tuple[int, int]:
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

    def _zeros(self, zeros: Array, n: int, groups: int) -> Array:
        """[n, groups] uint8"""
        if zeros.dtype == INT32:
            return np.ascontiguousarray(unpacked(zeros.T, self.bits)[:, :n].T)
        signed = _spread(zeros, n, groups).astype(np.int16)
        return (signed + MIDDLE[self.bits]).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class ScaledLayout:
    """`int-quantized` and `float-quantized`: eight bits, multiplied by quantized activations.

    weight        [n, k]  int8, or e4m3 where `floats`
    weight_scale  [1], [n, 1] or, by blocks, [⌈n / rows⌉, ⌈k / columns⌉]
    input_scale   [1], where activations are quantized by a scale that was measured beforehand
    Zero points of symmetric weights are all 0 and not read; those of activations follow from each token.
    """

    floats: bool
    static: bool = False
    block: tuple[int, int] | None = None

    @property
    def required(self) -> tuple[str, ...]:
        return ("weight", "weight_scale", "input_scale") if self.static else ("weight", "weight_scale")

    @property
    def optional(self) -> tuple[str, ...]:
        unused = ("weight_zero_point", "input_zero_point")
        return unused if self.static else ("input_scale", *unused)

    def form(self, name: str, pieces: Pieces) -> ScaledForm:
        values = matrix(name, "weight", pieces, [E4M3 if self.floats else INT8])
        check_factors(name, "weight_scale", pieces, values, self.block)
        if self.static:
            check_single(name, "input_scale", pieces)
        return ScaledForm(values.dtype, self.block, self.static)

    def read(self, name: str, pieces: Pieces) -> Scaled:
        self.form(name, pieces)
        input_scale = pieces["input_scale"] if self.static else None
        return scaled(pieces["weight"], pieces["weight_scale"], input_scale, self.block)


def _scales_shape(scales: Array, n: int, groups: int) -> tuple[int, ...]:
    """How scales may lie: one for all, or [n, groups]; [n] will do for [n, 1]."""
    whole = scales.size == 1 or (groups == 1 and scales.shape == (n,))
    return tuple(scales.shape) if whole else (n, groups)


def _spread(array: Array, n: int, groups: int) -> Array:
    """What `_scales_shape` permits → [n, groups]"""
    return np.broadcast_to(array.reshape(-1, groups if array.size > 1 else 1), (n, groups))
