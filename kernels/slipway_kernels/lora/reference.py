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
    scaling: Sequence[float],
    ranks: Sequence[int],
    slices: Sequence[int],
    row_adapters: Sequence[int],
    out: Tensor,
) -> Tensor:
    """out[row] + scaling · x[row] · Aᵀ · Bᵀ in fp32, A and B those of the row's adapter and of each slice.

    x             [rows, k]
    a             [adapters, slices · rank, k]
    b             [adapters, n, rank]
    slices        the columns at which slices begin, and n
    row_adapters  [rows], −1 where a row has none
    out           [rows, n]
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
            result[row, left:right] += scaling[adapter] * added
    return result


def merged(weight: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """weight + scaling · B · A in fp32: the weight that an adapter of one slice stands for."""
    return weight.float() + scaling * (b.float() @ a.float())


def filled(shape: Sequence[int], deviation: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random adapters for tests and benchmarks."""
    return (torch.randn(*shape, device=device) * deviation).to(dtype)
