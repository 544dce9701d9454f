"""Attention's definition, without pages."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int = 0, softcap: float = 0.0) -> Tensor:
    """softmax(scale · q · Kᵀ) · V in fp32; the queries are the last positions of the keys.

    q [rows, heads, head_dim], k and v [positions, kv_heads, head_dim]; each query sees the positions up to
    its own, the last `window` of them where that is not 0. Scores become softcap · tanh(score / softcap).
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
    score = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    position = torch.arange(len(k))
    query = position[len(k) - len(q) :, None]
    hidden = (position > query) | ((position <= query - window) if window else False)
    return torch.einsum("hqk,khd->qhd", score.masked_fill(hidden, -torch.inf).softmax(-1), v)
