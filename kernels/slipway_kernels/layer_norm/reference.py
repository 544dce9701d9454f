"""Layer norm's definition."""

from __future__ import annotations

import torch
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """y = (x − mean(x)) / sqrt(var(x) + eps) · weight + bias, in fp32 over the last dimension.

    Source: Ba et al. 2016.
    """
    x = x.float()
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    return y if bias is None else y + bias.float()
