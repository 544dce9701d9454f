"""The 16-bit product's definition."""

from __future__ import annotations

from torch import Tensor


def linear_bf16(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, summed in fp32.   x [m, k], weight [n, k], bias [n]; result fp32 [m, n]"""
    y = x.float() @ weight.float().T
    return y if bias is None else y + bias.float()
