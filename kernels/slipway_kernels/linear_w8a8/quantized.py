"""8-bit products of activations that are still wide: quantized as the weight wants them, then multiplied."""

from __future__ import annotations

from torch import Tensor

from slipway_kernels.linear_w8a8.op import linear_w8a8
from slipway_kernels.quantize.quantized import QuantizedRows


def quantized_linear(
    x: Tensor, w: Tensor, w_scale: Tensor, out: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """out = x · (w · w_scale)ᵀ + bias, x quantized row by row, or by blocks of 128 columns where w is.

    x  [m, k]  bf16, fp16 or fp32, columns adjacent
    The rest is as in `linear_w8a8`. Returns out. Raises ValueError where shapes disagree.
    """
    rows = QuantizedRows.of(w.dtype, 0 if w_scale.ndim == 1 else 128, x)
    return linear_w8a8(rows.values, rows.scales, w, w_scale, out, bias=bias)
