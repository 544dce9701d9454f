"""The definition of a sum over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def all_reduce(parts: Sequence[Tensor]) -> Tensor:
    """x₀ + x₁ + …, in fp32 and in the order of ranks, rounded once: to the bit, whatever the size."""
    total = parts[0].to(torch.float32, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(parts[0].dtype)
