"""Activations as products of eight bits read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.quantize.op import quantize_rows


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
        """Empty rows of `dtype` of the shape of like [rows, k]. group  0: all of a row"""
        rows, k = like.shape
        shape = (rows, -(-k // group)) if group else (rows,)
        values = torch.empty(rows, k, dtype=dtype, device=like.device)
        return cls(values, torch.empty(shape, dtype=torch.float32, device=like.device), group)

    @classmethod
    def of(cls, dtype: torch.dtype, group: int, x: Tensor) -> QuantizedRows:
        """x [rows, k], bf16, fp16 or fp32 with adjacent columns, by a kernel of its own."""
        rows = cls.empty(dtype, group, x)
        quantize_rows(x, rows.values, rows.scales, group=group)
        return rows
