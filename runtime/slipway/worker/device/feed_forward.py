"""Feed-forward layers on the device: one MLP, or experts chosen row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from slipway.model.spec import Activation, Mlp, Moe
from slipway.model.weights import MlpWeights, MoeWeights
from slipway.schemes.fused import FusedLinear
from slipway.worker.device.batch import Batch
from slipway.worker.device.products import Rows, gated_for, product
from slipway.worker.device.schemes import DeviceDense, DeviceGrouped, DeviceScaled, Move, relocated
from slipway_kernels.linear_w4a16 import Packed
from slipway_kernels.moe import (
    Arrangement,
    Scaled,
    arrange,
    arrangement,
    block_m_of,
    combine,
    moe_linear,
    route,
    stack_experts,
)
from slipway_kernels.quantize import QuantizedRows


def fed_forward(mlp: Mlp, weights: MlpWeights, x: Rows) -> Tensor:
    """down(activation(gate(x)) · up(x)).   x [rows, hidden] → [rows, hidden]"""
    both = product(weights.gate_up, x)  # [rows, 2 · intermediate], the gate's columns first
    return product(weights.down, gated_for(weights.down, both, mlp.activation))


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts, their matrices stacked.

    gate_up  [experts, 2 · intermediate, hidden], gate above up
    down     [experts, hidden, intermediate]
    """

    moe: Moe
    router: FusedLinear
    gate_up: Tensor | Scaled | Packed
    down: Tensor | Scaled | Packed
    shared: MlpWeights | None
    shared_scale: FusedLinear | None

    @classmethod
    def of(cls, moe: Moe, weights: MoeWeights) -> Experts:
        """Takes the experts' matrices out of `weights`, so that none is held twice."""
        return cls(
            moe,
            weights.router,
            _stacked([expert.gate_up for expert in weights.experts]),
            _stacked([expert.down for expert in weights.experts]),
            weights.shared,
            weights.shared_scale,
        )

    def operand(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which rows are multiplied, given that of activations."""
        return self.gate_up.values.dtype if isinstance(self.gate_up, Scaled) else dtype

    def moved(self, to: Move) -> Experts:
        """With the stacked matrices where `to` puts them."""
        return replace(self, gate_up=_relocated(self.gate_up, to), down=_relocated(self.down, to))

    def apply(self, x: Tensor, batch: Batch) -> Tensor:
        """x [rows, hidden] → [rows, hidden]; rows of padding choose no expert."""
        moe, rows, device = self.moe, len(x), x.device
        pairs = rows * moe.top_k
        ids = torch.empty(rows, moe.top_k, dtype=torch.int32, device=device)
        weights = torch.empty(rows, moe.top_k, device=device)
        route(product(self.router, x), moe.top_k, moe.normalize_top_k, ids, weights, slots=batch.row_slots)
        order = arrange(
            ids,
            arrangement(pairs, moe.experts, block_m_of(pairs, moe.experts, self.operand(x.dtype)), device),
        )
        inner = torch.empty(pairs, moe.intermediate, dtype=x.dtype, device=device)
        _product(x, self.gate_up, order, inner, moe.activation)
        y = torch.empty(pairs, x.shape[1], dtype=x.dtype, device=device)
        _product(inner, self.down, order, y)
        shared = gate = None
        if moe.shared and self.shared and self.shared_scale:
            shared = fed_forward(moe.shared, self.shared, x)
            gate = product(self.shared_scale, x)
        return combine(y, ids, weights, torch.empty_like(x), shared=shared, shared_gate=gate)


def experts_of(mlp: Mlp | Moe, weights: MlpWeights | MoeWeights) -> Experts | None:
    """A layer's experts, where it has any; see `Experts.of`."""
    if isinstance(mlp, Moe) and isinstance(weights, MoeWeights):
        return Experts.of(mlp, weights)
    return None


def _stacked(linears: Sequence[FusedLinear]) -> Tensor | Scaled | Packed:
    """One matrix of all experts', as it is multiplied; their own are let go."""
    schemes = [linear.parts[0].scheme for linear in linears]
    if isinstance(schemes[0], DeviceGrouped):
        return stack_experts([scheme.taken() for scheme in schemes if isinstance(scheme, DeviceGrouped)])
    if isinstance(schemes[0], DeviceScaled):
        scaled = [scheme.taken() for scheme in schemes if isinstance(scheme, DeviceScaled)]
        values = torch.stack([one.values.view(torch.uint8) for one in scaled])
        return Scaled(values.view(scaled[0].values.dtype), torch.stack([one.scales for one in scaled]))
    return torch.stack([scheme.taken() for scheme in schemes if isinstance(scheme, DeviceDense)])


def _relocated(weights: Tensor | Scaled | Packed, to: Move) -> Tensor | Scaled | Packed:
    if isinstance(weights, Tensor):
        return to(weights)
    if isinstance(weights, Scaled):
        return Scaled(to(weights.values), to(weights.scales))
    return relocated(weights, to)


def _product(
    x: Tensor,
    weights: Tensor | Scaled | Packed,
    order: Arrangement,
    out: Tensor,
    activation: Activation | Literal[""] = "",
) -> Tensor:
    """Every pair's row times its expert's matrix; for `Scaled` matrices rows are quantized first."""
    if not isinstance(weights, Scaled):
        return moe_linear(x, weights, order, out, activation=activation)
    rows = QuantizedRows.of(weights.values.dtype, weights.group, x)
    return moe_linear(rows.values, weights, order, out, activation=activation, x_scale=rows.scales)
