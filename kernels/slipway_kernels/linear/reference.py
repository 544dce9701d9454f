"""The products' definition."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.activation.reference import activate


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x · Wᵀ + bias, summed in fp32.   x [rows, k], weight [n, k], y fp32 [rows, n]"""
    return torch.nn.functional.linear(x.float(), weight.float(), bias)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """Rows as linear_gated wants them: 16 of the gate, 16 of up, and so on, zeros at the end."""
    blocks = -(-len(gate) // 16)
    pair = torch.zeros(2, blocks * 16, gate.shape[1], dtype=gate.dtype)
    pair[0, : len(gate)], pair[1, : len(up)] = gate, up
    return pair.view(2, blocks, 16, -1).transpose(0, 1).reshape(blocks * 32, -1)


def linear_gated(x: Tensor, gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(x · gateᵀ) · (x · upᵀ)"""
    return activate(linear(x, gate), activation) * linear(x, up)


def quantized_rows(x: Tensor) -> Tensor:
    """x as products with integers read it: in each 32 columns of a row the largest is ±32,767 and all others
    are rounded to its grid.   x [rows, k], the result fp32
    """
    rows, k = x.shape
    blocks = torch.nn.functional.pad(x.float(), (0, -k % 32)).view(rows, -1, 32)
    most = blocks.abs().amax(dim=-1, keepdim=True)
    inverse = torch.full_like(most, 32767).div(most).nan_to_num(posinf=0)
    codes = (blocks * inverse).round()
    return (codes * (most / 32767)).view(rows, -1)[:, :k]


def linear_codes(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product with small integers, given by what they stand for: only x is rounded."""
    return linear(quantized_rows(x), weight, bias)
