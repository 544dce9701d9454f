"""Quantization's definition."""

from __future__ import annotations

import torch
from torch import Tensor


def limit_of(dtype: torch.dtype) -> float:
    """The largest number that is used: 448 in fp8 e4m3, 57344 in e5m2, 127 in int8, which leaves out -128."""
    return 127.0 if dtype == torch.int8 else float(torch.finfo(dtype).max)


def with_scale(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x / scale, rounded to nearest with ties to even, saturated."""
    limit = limit_of(dtype)
    scaled = torch.where(scale > 0, x.float() / scale, 0.0).clamp(-limit, limit)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype)


def quantize(x: Tensor, dtype: torch.dtype, group: int = 0) -> tuple[Tensor, Tensor]:
    """Values and scales [rows, groups]: of each row, each `group` of columns where that is not 0 has a scale.

    scale = max |x| / limit
    """
    rows, width = x.shape
    group = group or width
    padded = torch.nn.functional.pad(x.float(), (0, -width % group)).view(rows, -1, group)
    scales = padded.abs().amax(-1) / limit_of(dtype)
    values = with_scale(padded, scales[..., None], dtype)
    return values.view(rows, -1)[:, :width], scales
