"""Activations as products of eight bits read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """x = values · scales, each row with a scale, or each `group` of its columns.

    values  [rows, k]  fp8 or int8
    scales  [rows] or [rows, ⌈k / group⌉]  fp32
    """

    values: Tensor
    scales: Tensor
    group: int

    @classmethod
    def empty(cls, dtype: torch.dtype, group: int, like: Tensor) -> QuantizedRows:
        """Room for numbers of `dtype` in the place of like [rows, k]. group  0: all of a row"""
        rows, k = like.shape
        shape = (rows, -(-k // group)) if group else (rows,)
        return cls(torch.empty_like(like, dtype=dtype), torch.empty(shape, device=like.device), group)


Rows = Tensor | QuantizedRows
