"""Feed-forward layers on the device: one MLP, or experts chosen row by row."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.envs import read
from slipway.model.weights import MlpWeights, MoeWeights
from slipway.schemes.fused import FusedLinear
from slipway.worker.device.expert_low_rank import MOST_ROWS
from slipway.worker.device.low_rank import RowAdapters
from slipway.worker.device.products import DeviceScheme, Rows, gated_for, product, scheme_of
from slipway_kernels.activation import gated
from slipway_kernels.moe import arrange, arrangement, block_m_of, combine, route


def fed_forward(weights: MlpWeights, x: Rows, adapters: RowAdapters | None) -> Tensor:
    """down(activation(gate(x)) · up(x)).   x [rows, hidden] → [rows, hidden]"""
    both = product(weights.gate_up, x, adapters)  # [rows, 2 · intermediate], the gate's columns first
    inner = gated_for(weights.down, both, weights.spec.activation, adapters)
    return product(weights.down, inner, adapters)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts, their matrices stacked.

    gate_up  [experts, 2 · intermediate, hidden], gate above up
    down     [experts, hidden, intermediate]
    chunk    rows of one pass, at most: a pass keeps top_k times as many rows between its products
    here     [experts of the model] int32  place of each in the stack, -1: another rank has it; None: all are
    """

    weights: MoeWeights
    gate_up: DeviceScheme
    down: DeviceScheme
    chunk: int
    here: Tensor | None = None

    def apply(self, x: Rows, slots: Tensor, adapters: RowAdapters | None) -> Tensor:
        """x [rows, hidden] → [rows, hidden]; rows of padding, whose slots [rows] are -1, choose no expert."""
        adapted = adapters is not None and adapters.of_rows is not None
        chunk = min(self.chunk, MOST_ROWS) if adapted else self.chunk
        if len(slots) <= chunk:
            return self._apply(x, slots, adapters)
        parts = [slice(begin, begin + chunk) for begin in range(0, len(slots), chunk)]
        results = [
            self._apply(Rows(x.plain[part]), slots[part], adapters and adapters.of(slots[part]))
            for part in parts
        ]
        return torch.cat(results)

    def _apply(self, x: Rows, slots: Tensor, adapters: RowAdapters | None) -> Tensor:
        linears, moe, plain = self.weights, self.weights.spec, x.plain
        rows, device = len(plain), plain.device
        pairs = rows * moe.top_k
        ids = torch.empty(rows, moe.top_k, dtype=torch.int32, device=device)
        weights = torch.empty(rows, moe.top_k, device=device)
        logits = product(linears.router, x)
        route(logits, moe.top_k, moe.normalize_top_k, ids, weights, here=self.here, slots=slots)
        operand, _ = self.gate_up.operand or (plain.dtype, 0)
        experts = len(moe.held)
        order = arrange(ids, arrangement(pairs, experts, block_m_of(pairs, experts, operand), device))
        inner = torch.empty(pairs, moe.intermediate, dtype=plain.dtype, device=device)
        adapted = adapters.pairs(linears, ids) if adapters is not None else None
        if adapted is None:
            self.gate_up.apply_experts(x, order, inner, moe.activation)
        else:
            both = torch.empty(pairs, 2 * moe.intermediate, dtype=plain.dtype, device=device)
            self.gate_up.apply_experts(x, order, both)
            adapted.add_gate_up(plain, both)
            gated(both, inner, moe.activation)
        y = torch.empty(pairs, plain.shape[1], dtype=plain.dtype, device=device)
        self.down.apply_experts(Rows(inner), order, y)
        if adapted is not None:
            adapted.add_down(inner, y)
        shared = gate = None
        if linears.shared and linears.shared_scale:
            shared = fed_forward(linears.shared, x, adapters)
            gate = product(linears.shared_scale, x)
        return combine(y, ids, weights, torch.empty_like(plain), shared=shared, shared_gate=gate)


def with_stacked_experts(weights: MlpWeights | MoeWeights, device: torch.device) -> MlpWeights | Experts:
    """Takes experts' matrices, where there are any, out of `weights`, so that none is held twice."""
    if isinstance(weights, MlpWeights):
        return weights
    experts = weights.experts
    gate_up, down = _stacked(one.gate_up for one in experts), _stacked(one.down for one in experts)
    here = None
    if (part := weights.spec.part) is not None:
        here = torch.full((weights.spec.experts,), -1, dtype=torch.int32, device=device)
        here[part.start : part.stop] = torch.arange(len(part), dtype=torch.int32, device=device)
    return Experts(weights, gate_up, down, read(os.environ).fused_moe_chunk_size, here)


def _stacked(linears: Iterable[FusedLinear]) -> DeviceScheme:
    """One matrix of all experts', as it is multiplied; their own are let go."""
    schemes = [scheme_of(linear.parts[0]) for linear in linears]
    return schemes[0].stacked(schemes)
