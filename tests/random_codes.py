"""Quantized layers of which every code and zero occurs."""

from __future__ import annotations

import torch
from quantize import Rounded


def random(
    n: int, k: int, group: int, *, bits: int = 4, symmetric: bool = False, act_order: bool = False
) -> Rounded:
    """Codes and zeros of every value, whatever weights they would come from."""
    torch.manual_seed(n * k + bits)
    size = k if group == -1 else group
    top = 2**bits
    order = torch.randperm(k) if act_order else torch.arange(k)
    groups = torch.empty(k, dtype=torch.int32)
    groups[order] = torch.arange(k, dtype=torch.int32) // size
    zeros = torch.randint(top, (n, k // size))
    return Rounded(
        bits,
        torch.randint(top, (n, k)),
        (torch.rand(n, k // size) + 0.01).half(),
        torch.full_like(zeros, top // 2) if symmetric else zeros,
        groups,
    )
