"""What an adapter adds, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def lora(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    ranks: Sequence[int],
    slices: Sequence[int],
    row_adapters: Sequence[int],
    out: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """out[row] + x[row] · Aᵀ · Bᵀ + bias in fp32, all those of the row's adapter, A and B of each slice.

    x             [rows, k]
    a             [adapters, slices · rank, k]
    b             [adapters, n, rank]  with the scaling
    slices        the columns at which slices begin, and n
    row_adapters  [rows], −1 where a row has none
    out           [rows, n]
    bias          [adapters, n], or None
    Source: Hu et al. 2021 (LoRA).
    """
    rank = b.shape[2]
    result = out.float().clone()
    for row, adapter in enumerate(row_adapters):
        if adapter < 0:
            continue
        for index, (left, right) in enumerate(pairwise(slices)):
            own = slice(index * rank, index * rank + ranks[adapter])
            h = a[adapter, own].float() @ x[row].float()
            added = b[adapter, left:right, : ranks[adapter]].float() @ h
            result[row, left:right] += added
        if bias is not None:
            result[row] += bias[adapter]
    return result


def looked_up(
    ids: Sequence[int],
    a: Tensor,
    b: Tensor,
    ranks: Sequence[int],
    row_adapters: Sequence[int],
    out: Tensor,
) -> Tensor:
    """out[row] + B · A[:, id of row] in fp32. The rest is as in `lora`, of one slice."""
    result = out.float().clone()
    for row, (token, adapter) in enumerate(zip(ids, row_adapters, strict=True)):
        if adapter >= 0:
            own = slice(0, ranks[adapter])
            result[row] += b[adapter, :, own].float() @ a[adapter, own, token].float()
    return result


def own_logits(
    x: Tensor,
    head: Tensor,
    bias: Tensor,
    tokens: Tensor,
    counts: Sequence[int],
    places: Sequence[int],
    out: Tensor,
    cap: float = 0.0,
) -> Tensor:
    """out[row] with x[row] · head[n] + bias[n] at tokens[n], for all n of the row's place, in fp32.

    head [places, most, k], bias and tokens [places, most], counts [places]; cap: of tanh, 0: none
    """
    result = out.float().clone()
    for row, place in enumerate(places):
        if place >= 0:
            own = slice(0, counts[place])
            found = head[place, own].float() @ x[row].float() + bias[place, own]
            result[row, tokens[place, own].long()] = cap * (found / cap).tanh() if cap else found
    return result


def merged(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """weight + B · A in fp32: the weight that an adapter of one slice stands for."""
    return weight.float() + b.float() @ a.float()


def filled(shape: Sequence[int], deviation: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random adapters for tests and benchmarks."""
    return (torch.randn(*shape, device=device) * deviation).to(dtype)
