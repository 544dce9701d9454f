"""The quantized products' definition."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.linear_w4a16.layout import Packed, unpack


def dequantized(packed: Packed) -> Tensor:
    """W [n, k] in the packed type: scale · code + minimum, rounded once, columns in the original order."""
    codes, scales, minimums = unpack(packed)
    groups = scales.shape[1]
    weights = codes.double()
    if minimums is None and packed.bits == 4:
        weights -= 8
    width = packed.k // groups
    weights = weights * scales.double().repeat_interleave(width, dim=1)
    if minimums is not None:
        weights += minimums.double().repeat_interleave(width, dim=1)
    if packed.order is not None:
        weights = weights[:, torch.argsort(packed.order)]
    return weights.to(packed.dtype)


def linear_w4a16(x: Tensor, packed: Packed, bias: Tensor | None = None) -> Tensor:
    """y = x · Wᵀ + bias, summed in fp32.   x [m, k], y fp32 [m, n]"""
    return torch.nn.functional.linear(
        x.float(), dequantized(packed).float(), None if bias is None else bias.float()
    )
