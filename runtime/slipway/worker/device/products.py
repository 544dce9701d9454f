"""Products, and the rows that they multiply: what makes rows quantizes them on the way, in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, Self, cast

import torch
from torch import Tensor

from slipway.model.encoder_spec import EncoderActivation
from slipway.model.spec import Activation
from slipway.schemes.fused import FusedLinear, Part
from slipway.schemes.scheme import Scheme
from slipway.worker.device.low_rank import RowAdapters
from slipway_kernels.activation import activate, gated
from slipway_kernels.moe import Arrangement
from slipway_kernels.quantize import QuantizedRows
from slipway_kernels.rms_norm import rms_norm

Gate = Activation | Literal[""]
Move = Callable[[Tensor], Tensor]
"""What comes in a tensor's place, with the same shape and type."""
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


class DeviceScheme(Scheme, Protocol):
    """A matrix on a device, or in host memory for it; or many experts' as one, once they are stacked."""

    operand: Operand | None
    """How it wants rows quantized; None: plain."""

    def apply(self, x: Rows, bias: Tensor | None = None) -> Tensor: ...
    def rows(self, ids: Tensor) -> Tensor:
        """Rows of these ids [m] in the type of activations; -1 gives zeros."""

    def stored(self, ids: Tensor) -> Tensor | None:
        """Rows of these ids [m] int64, by torch's operations alone; None where the matrix is quantized."""
        return None

    def move(self, to: Move) -> None:
        """Hold the matrix where `to` puts it."""

    def stacked(self, experts: Sequence[Self]) -> Self:
        """One that holds the matrices of all experts, itself among them, which hold theirs no more."""

    def apply_experts(self, x: Rows, order: Arrangement, out: Tensor, activation: Gate = "") -> Tensor:
        """Of a stack: every pair's row times its expert's matrix, as `moe_linear`."""


def product(linear: FusedLinear, x: Rows, adapters: RowAdapters | None = None) -> Tensor:
    """x [rows, k] → [rows, n]: the one place where a layer is multiplied by, and so where adapters add."""
    results = [scheme_of(part).apply(x, bias) for part, bias in linear.products()]
    out = results[0] if len(results) == 1 else torch.cat(results, dim=-1)
    if adapters is not None and linear in adapters:
        adapters.add(linear, x.plain, out)
    return out


def normed_for(
    linear: FusedLinear | None,
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    add_one: bool = False,
    adapters: RowAdapters | None = None,
) -> Rows:
    """`rms_norm` of x [rows, width], as `linear` and its adapters want it; plain for None."""
    rows, values, scales, group = _room_for(linear, x, adapters)
    rms_norm(x, weight, eps, values, residual=residual, add_one=add_one, scales=scales, group=group)
    return rows


def gated_for(
    linear: FusedLinear,
    both: Tensor,
    kind: Activation | EncoderActivation,
    adapters: RowAdapters | None = None,
) -> Rows:
    """kind(gate) · up of both [rows, 2 · width], the gate's columns first, as `linear` and its adapters want
    it."""
    rows, values, scales, group = _room_for(linear, both[:, : both.shape[1] // 2], adapters)
    gated(both, values, kind, scales=scales, group=group)
    return rows


def activated_for(linear: FusedLinear, x: Tensor, kind: Activation | EncoderActivation) -> Rows:
    """kind(x) of x [rows, width], as `linear` wants it."""
    rows, values, scales, group = _room_for(linear, x, None)
    activate(x, values, kind, scales=scales, group=group)
    return rows


def _room_for(
    linear: FusedLinear | None, like: Tensor, adapters: RowAdapters | None
) -> tuple[Rows, Tensor, Tensor | None, int]:
    """Rows of the shape and the place of like [rows, k] that `linear` will multiply, and their memory:
    numbers, scales, and the columns that share one. Adapters multiply plain rows."""
    operands = set() if linear is None else {scheme_of(part).operand for part in linear.parts}
    both = adapters is not None and linear in adapters
    operand = operands.pop() if len(operands) == 1 and not both else None
    if operand is None:
        plain = like.new_empty(like.shape)
        return Rows(plain), plain, None, 0
    made = QuantizedRows.empty(*operand, like)
    return Rows(None, made), made.values, made.scales, made.group


def move_matrices(linears: Iterable[FusedLinear], to: Move) -> None:
    """Have `to(tensor)` in the place of each tensor of these."""
    for linear in linears:
        for part in linear.parts:
            scheme_of(part).move(to)


def scheme_of(part: Part) -> DeviceScheme:
    return cast(DeviceScheme, part.scheme)
