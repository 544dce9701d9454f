"""Attention's definition, without pages and over them."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    causal: bool = True,
    first: int = 0,
) -> Tensor:
    """softmax(scale · q · Kᵀ) · V in fp32; the queries are the last positions of the keys.

    q [rows, heads, head_dim], k and v [positions, kv_heads, head_dim]; each query sees the positions up to
    its own, the last `window` of them where that is not 0. Scores become softcap · tanh(score / softcap),
    then fall by slopes [heads] for every position that the key is behind; sinks [heads] are scores without
    a value that join each row's softmax. Queries from `first` on see no key before it. Where it is not
    causal, each sees the positions after it, too: all, or `window` to each side, its own included.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
    score = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    position = torch.arange(len(k), device=k.device)
    query = position[len(k) - len(q) :, None]
    if slopes is not None:
        score = score - slopes.float()[:, None, None] * (query - position)
    hidden = (position > query) if causal else torch.zeros_like(position > query)
    if window:
        hidden |= (position <= query - window) | (position >= query + window)
    hidden |= (position < first) & (query >= first)
    score = score.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        score = torch.cat((score, sinks.float()[:, None, None].expand(-1, len(q), 1)), 2)
    return torch.einsum("hqk,khd->qhd", score.softmax(-1)[..., : len(k)], v)


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    slots: Tensor,
    query_start: Tensor,
    lengths: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """The same for several requests, whose keys and values [pages, kv_heads, block, head_dim] are in pages.

    Of request r the queries are the rows query_start[r] .. query_start[r + 1] of q, the last of lengths[r]
    positions; its pages are the row slots[r] of the block table. Rows of no request, or of slot −1, are
    zeros.
    """
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    starts = query_start.tolist()
    for request, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        rows = slice(starts[request], starts[request + 1])
        if slot < 0 or rows.start == rows.stop:
            continue
        k, v = (
            gathered(part, block_table[slot], length) * (1.0 if factor is None else factor.view(-1, 1))
            for part, factor in ((keys, key_scale), (values, value_scale))
        )
        out[rows] = attention(q[rows], k, v, scale, window, softcap, slopes, sinks, first=first)
    return out


def gathered(pages: Tensor, blocks: Tensor, length: int) -> Tensor:
    """[length, kv_heads, head_dim] fp32: what the pages of `blocks` hold; zeros where one is −1."""
    block = pages.shape[2]
    blocks = blocks[: -(-length // block)].long()
    rows = pages[blocks.clamp(min=0)].float().masked_fill((blocks < 0)[:, None, None, None], 0.0)
    return rows.transpose(1, 2).flatten(0, 1)[:length]
