"""The activations' definition."""

from __future__ import annotations

import torch
from torch import Tensor


def activate(x: Tensor, activation: str) -> Tensor:
    """silu: x · sigmoid(x); gelu: x · Φ(x); gelu_tanh: its tanh form (Hendrycks & Gimpel 2016)."""
    if activation == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def add_gated(out: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """out + sigmoid(gate) · y.   out, y [rows, width], gate [rows, 1]"""
    return out + torch.sigmoid(gate) * y
