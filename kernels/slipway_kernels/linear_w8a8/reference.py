"""The 8-bit product's definition."""

from __future__ import annotations

from torch import Tensor


def widened(values: Tensor, scale: Tensor) -> Tensor:
    """values · scale in fp32.

    values [rows, k]; scale [rows], [1], [rows, k / 128] or [rows / 128, k / 128]
    """
    wide = values.float()
    if scale.ndim == 1:
        return wide * scale[:, None]
    rows, k = values.shape
    height = 1 if len(scale) == rows else 128
    return wide * scale.repeat_interleave(height, 0)[:rows].repeat_interleave(128, 1)[:, :k]


def linear_w8a8(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """(x · x_scale) · (w · w_scale)ᵀ + bias, in fp32.   x [m, k], w [n, k], bias [n]; result [m, n]"""
    y = widened(x, x_scale) @ widened(w, w_scale).T
    return y if bias is None else y + bias.float()
