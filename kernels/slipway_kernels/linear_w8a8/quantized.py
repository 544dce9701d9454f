"""8-bit products of activations that are still wide: quantized as the weight wants them, then multiplied."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.linear_w8a8.op import linear_w8a8
from slipway_kernels.quantize.op import quantize_rows, quantize_static


@dataclass(frozen=True, slots=True)
class Workspace:
    """Room for the activations of one product at a time.

    values  [rows, k]  the weight's type
    scales  [rows], or by blocks [rows, ⌈k / 128⌉]  fp32
    """

    values: Tensor
    scales: Tensor


def workspace(rows: int, w: Tensor, w_scale: Tensor) -> Workspace:
    """What `quantized_linear` works in, for at most so many rows before a weight like w."""
    k, device = w.shape[1], w.device
    shape = (rows,) if w_scale.ndim == 1 else (rows, -(-k // 128))
    return Workspace(
        torch.empty(rows, k, dtype=w.dtype, device=device),
        torch.empty(shape, dtype=torch.float32, device=device),
    )


def quantized_linear(
    x: Tensor,
    w: Tensor,
    w_scale: Tensor,
    out: Tensor,
    room: Workspace,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
) -> Tensor:
    """out = x · (w · w_scale)ᵀ + bias, x quantized row by row, by blocks where w is, or by a given scale.

    x           [m, k]  bf16, fp16 or fp32, columns adjacent
    w, w_scale, bias, out  as linear_w8a8 takes them
    x_scale     [1] fp32: the scale of all activations where the checkpoint brings one (static), or None
    Returns out. Raises ValueError where shapes disagree, where the workspace is too small, and for a given
    scale beside a weight by blocks.
    """
    m, k = x.shape
    if room.values.shape[1] != k or len(room.values) < m:
        raise ValueError(
            f"x is {list(x.shape)} and the workspace holds {list(room.values.shape)}: make it by workspace() "
            f"for at least {m} rows before a weight [n, {k}]."
        )
    values = room.values[:m]
    if x_scale is None:
        group = 0 if w_scale.ndim == 1 else 128
        values, x_scale = quantize_rows(x, values, room.scales[:m], group=group)
    elif w_scale.ndim == 2:
        raise ValueError(
            f"the weight has scales {list(w_scale.shape)} by blocks and x one for all: leave x_scale out, so "
            "that x is quantized by blocks too."
        )
    else:
        values = quantize_static(x, values, x_scale)
    return linear_w8a8(values, x_scale, w, w_scale, out, bias=bias)
