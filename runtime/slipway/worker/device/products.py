"""Products, and the rows that they multiply: what makes rows quantizes them on the way, in one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from slipway.model.spec import Activation
from slipway.schemes.fused import FusedLinear, Part
from slipway.schemes.scheme import Scheme
from slipway_kernels.activation import gated
from slipway_kernels.quantize import QuantizedRows
from slipway_kernels.rms_norm import rms_norm

Operand = tuple[torch.dtype, int]
"""The type in which rows are multiplied, and how many of their columns share a scale; 0: all."""


class Rows:
    """Rows [m, k] for products: plain, and quantized as matrices want them, each form made once for all."""

    def __init__(self, plain: Tensor | None, quantized: QuantizedRows | None = None) -> None:
        self._plain = plain
        self._quantized: dict[Operand, QuantizedRows] = {}
        if quantized is not None:
            self._quantized[quantized.values.dtype, quantized.group] = quantized

    @property
    def plain(self) -> Tensor:
        """Raises ValueError where a kernel has made them quantized for their only readers."""
        if self._plain is None:
            raise ValueError("These rows were made for quantized products alone: make them plain, too.")
        return self._plain

    def quantized(self, operand: Operand) -> QuantizedRows:
        if operand not in self._quantized:
            self._quantized[operand] = QuantizedRows.of(*operand, self.plain)
        return self._quantized[operand]


class Multiplies(Protocol):
    """What a product needs of a scheme on a device."""

    @property
    def operand(self) -> Operand | None:
        """How it wants rows quantized; None: plain."""

    def apply(self, x: Rows, bias: Tensor | None = None) -> Tensor:
        """x [m, k] → x · Wᵀ + bias [m, n], in the form that it wants."""


@dataclass(frozen=True, slots=True)
class OnRows:
    """A scheme of the device, for modules of torch, which know plain rows alone."""

    scheme: Scheme

    def apply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y: Tensor = self.scheme.apply(Rows(x), bias)
        return y

    def rows(self, ids: Tensor) -> Tensor:
        y: Tensor = self.scheme.rows(ids)
        return y


def product(linear: FusedLinear, x: Rows) -> Tensor:
    """x [rows, k] → [rows, n]: the one place where a layer is multiplied by, and so where adapters add."""
    results = [_scheme(part).apply(x, bias) for part, bias in linear.products()]
    return results[0] if len(results) == 1 else torch.cat(results, dim=-1)


def normed_for(
    linear: FusedLinear | None,
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    add_one: bool = False,
) -> Rows:
    """`rms_norm` of x [rows, width], as `linear` wants it; plain for None."""
    rows, values, scales, group = _room_for(linear, x)
    rms_norm(x, weight, eps, values, residual=residual, add_one=add_one, scales=scales, group=group)
    return rows


def gated_for(linear: FusedLinear, both: Tensor, kind: Activation) -> Rows:
    """kind(gate) · up of both [rows, 2 · width], the gate's columns first, as `linear` wants it."""
    rows, values, scales, group = _room_for(linear, both[:, : both.shape[1] // 2])
    gated(both, values, kind, scales=scales, group=group)
    return rows


def _room_for(linear: FusedLinear | None, like: Tensor) -> tuple[Rows, Tensor, Tensor | None, int]:
    """Rows of the shape and the place of like [rows, k] that `linear` will multiply, and their memory:
    numbers, scales, and the columns that share one."""
    operands = set() if linear is None else {_scheme(part).operand for part in linear.parts}
    operand = operands.pop() if len(operands) == 1 else None
    if operand is None:
        plain = like.new_empty(like.shape)
        return Rows(plain), plain, None, 0
    made = QuantizedRows.empty(*operand, like)
    return Rows(None, made), made.values, made.scales, made.group


def _scheme(part: Part) -> Multiplies:
    return cast(Multiplies, part.scheme)
