"""Rotary position embedding's definition."""

from __future__ import annotations

import torch
from torch import Tensor


def angles(max_len: int, rotary_dim: int, theta: float = 10000.0) -> Tensor:
    """cos and sin of position · theta^(-2i / rotary_dim).   [max_len, rotary_dim / 2, 2]"""
    frequency = theta ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim)
    turn = torch.arange(max_len).double()[:, None] * frequency
    return torch.stack((turn.cos(), turn.sin()), -1).float()


def rope(x: Tensor, cos_sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the pairs (i, i + rotary_dim / 2) of every head, or (2i, 2i + 1); the rest stays.

    x [rows, heads, head_dim], cos_sin [rows, rotary_dim / 2, 2]. Source: Su et al. 2021.
    """
    half = cos_sin.shape[1]
    cos, sin = cos_sin[:, None, :, 0], cos_sin[:, None, :, 1]
    if interleaved:
        a, b, rest = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2], x[..., 2 * half :]
        return torch.cat((torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2), rest), -1)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def store(
    cache: Tensor, x: Tensor, block_table: Tensor, row_slots: Tensor, positions: Tensor, scale: Tensor
) -> None:
    """Write x / scale to the page and offset of each row's position, saturated where the cache is fp8.

    cache [pages, kv_heads, block, head_dim], x [rows, kv_heads, head_dim], block_table
    [num_slots, max_blocks], scale [1] or [kv_heads]. Where the slot or the page is -1, nothing is written.
    """
    x = x / scale[:, None]
    if cache.dtype.itemsize == 1:
        limit = torch.finfo(cache.dtype).max
        x = x.clamp(-limit, limit)
    block = cache.shape[2]
    for row, (slot, position) in enumerate(zip(row_slots.tolist(), positions.tolist(), strict=True)):
        page = int(block_table[slot, position // block]) if slot >= 0 else -1
        if page >= 0:
            cache[page, :, position % block] = x[row].to(cache.dtype)
