"""The activations' definition."""

from __future__ import annotations

import torch
from torch import Tensor


def activate(x: Tensor, activation: str) -> Tensor:
    """silu: x · sigmoid(x); gelu: x · Φ(x); gelu_tanh: its tanh form (Hendrycks & Gimpel 2016).

    relu: max(x, 0); relu2: its square; tanh.
    """
    if activation in ("relu", "relu2"):
        return torch.relu(x) if activation == "relu" else torch.relu(x).square()
    if activation == "tanh":
        return torch.tanh(x)
    if activation == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def gated(x: Tensor, width: int, activation: str, run: int = 0) -> Tensor:
    """act(gate) · up, [rows, width] in fp32: halves of x, or runs of so many columns in turn."""
    size = run or width
    both = x.float().view(len(x), x.shape[1] // (2 * size), 2, size)  # [rows, runs, gate or up, run]
    out: Tensor = activate(both[:, :, 0], activation) * both[:, :, 1]
    return out.flatten(1)[:, :width]


def add_gated(out: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """out + sigmoid(gate) · y.   out, y [rows, width], gate [rows, 1]"""
    return out + torch.sigmoid(gate) * y
