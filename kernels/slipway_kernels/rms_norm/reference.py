"""RMS norm's definition."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, add_one: bool = False) -> Tensor:
    """y = x / sqrt(mean(x²) + eps) · weight, or · (1 + weight), in fp32 over the last dimension.

    Source: Zhang & Sennrich 2019.
    """
    x = x.float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * (weight.float() + (1.0 if add_one else 0.0))
