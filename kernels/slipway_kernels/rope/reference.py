"""Rotary position embedding's definition."""

from __future__ import annotations

import torch
from torch import Tensor


def angles(max_len: int, rotary_dim: int, theta: float = 10000.0) -> Tensor:
    """cos and sin of position · theta^(-2i / rotary_dim).   [max_len, rotary_dim / 2, 2]"""
    frequency = theta ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim)
    turn = torch.arange(max_len).double()[:, None] * frequency
    return torch.stack((turn.cos(), turn.sin()), -1).float()


def rope(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + rotary_dim / 2) of every head; what is beyond rotary_dim stays.

    x [rows, heads, head_dim], cos_sin [rows, rotary_dim / 2, 2]. Source: Su et al. 2021.
    """
    half = cos_sin.shape[1]
    cos, sin = cos_sin[:, None, :, 0], cos_sin[:, None, :, 1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
