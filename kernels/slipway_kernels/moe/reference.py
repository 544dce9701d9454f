"""The mixture of experts' definition."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.linear.reference import linear, linear_gated


def route(logits: Tensor, top_k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """Weights and experts [rows, top_k]: the largest of the softmax over all experts."""
    weights, experts = logits.softmax(-1).topk(top_k, -1)
    return (weights / weights.sum(-1, keepdim=True) if normalize else weights), experts


def moe(
    x: Tensor,
    router: Tensor,
    gates: Tensor,
    ups: Tensor,
    downs: Tensor,
    top_k: int,
    normalize: bool,
    activation: str,
) -> Tensor:
    """Weighted sum over the experts of each row.   gates, ups [experts, n, k], downs [experts, k, n]"""
    weights, experts = route(linear(x, router), top_k, normalize)
    out = torch.zeros(x.shape)
    for row in range(len(x)):
        for weight, expert in zip(weights[row], experts[row], strict=True):
            hidden = linear_gated(x[row : row + 1], gates[expert], ups[expert], activation)
            out[row] += weight * linear(hidden.to(x.dtype), downs[expert])[0]
    return out
