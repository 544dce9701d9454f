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
    """x as products with integers read it: in each 128 columns of a row all are rounded to the finest grid on
    which none is above 32,767 and their magnitudes sum to at most 524,096.   x [rows, k], the result fp32

    A number halfway between two of the grid is rounded as by the kernel only if the scale has the same bits.
    Therefore sums are taken in the kernel's order.
    """
    rows, k = x.shape
    blocks = torch.nn.functional.pad(x.float(), (0, -k % 128)).view(rows, -1, 128)
    vectors = (blocks.abs() / 128).view(rows, -1, 8, 16).unbind(-2)
    mean = sum(vectors[1:], vectors[0])
    for width in (8, 4, 2, 1):
        mean = mean[..., :width] + mean[..., width:]
    by_most = blocks.abs().amax(-1, keepdim=True) * torch.tensor(1 / 32767)
    scale = torch.maximum(by_most, mean * torch.tensor(128 / 524096))
    inverse = scale.reciprocal().nan_to_num(posinf=0)
    return ((blocks * inverse).round() * scale).view(rows, -1)[:, :k]


def linear_codes(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A product with small integers, given by what they stand for: only x is rounded."""
    return linear(quantized_rows(x), weight, bias)
