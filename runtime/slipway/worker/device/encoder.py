"""An encoder on the device: its rows see those behind them, and nothing of a step is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from slipway.load.torch_arrays import tensor
from slipway.model.encoder_spec import EncoderLayer, EncoderSpec
from slipway.model.encoder_weights import EncoderLayerWeights, EncoderWeights
from slipway.model.rope import cos_sin
from slipway.model.spec import Rope
from slipway.schemes.fused import FusedLinear
from slipway.worker.device.batch import Batch
from slipway.worker.device.low_rank import SlotAdapters
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.products import (
    Move,
    Rows,
    activated_for,
    gated_for,
    move_matrices,
    product,
    scheme_of,
)
from slipway.worker.device.ranks import Alone, Ranks
from slipway_kernels.attention import contiguous_attention
from slipway_kernels.layer_norm import layer_norm
from slipway_kernels.rope import rope_and_store


class _Norm(NamedTuple):
    """[hidden] fp32 each"""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer, ready to run, with the norms of what each of its branches is added to.

    Behind a branch of BERT's is its own norm; where norms come before branches it is the next branch's.
    """

    spec: EncoderLayer
    weights: EncoderLayerWeights
    rotation: Tensor | None  # [max_len, rotary_dim / 2, 2] fp32
    behind_attention: _Norm
    behind_mlp: _Norm


class DeviceEncoder:
    """Computes the final rows of whole prompts, with keys and values of the step alone."""

    told: Sequence[Tensor] = ()
    taken: Sequence[Tensor] = ()
    graphs = False  # lengths of prompts differ from step to step
    low_rank = None

    def __init__(
        self, spec: EncoderSpec, weights: EncoderWeights, max_len: int, device: torch.device
    ) -> None:
        self.spec = spec
        self.ranks: Ranks = Alone()
        self._embedding = weights.embedding
        arrays = {name: tensor(values).to(device) for name, values in weights.arrays.items()}
        self._types = arrays.get("types.weight")
        self._positions = arrays.get("positions.weight")
        if self._positions is not None:
            self._positions = self._positions[spec.first_position :]

        def norm(role: str) -> _Norm:
            return _Norm(arrays[f"{role}.weight"], arrays.get(f"{role}.bias"))

        self._embedding_norm = norm("embedding_norm")
        ropes = {layer.attention.rope for layer in spec.layers}
        rotations: dict[Rope | None, Tensor] = {
            rope: tensor(cos_sin(rope, max_len)).to(device) for rope in ropes if rope
        }
        self._layers = [
            _Layer(layer, parts, rotations.get(layer.attention.rope), *map(norm, _roles_behind(spec, number)))
            for number, (layer, parts) in enumerate(zip(spec.layers, weights.layers, strict=True))
        ]

    def use(self, pages: DevicePages) -> None:
        """Nothing: there are none."""

    def move(self, to: Move) -> None:
        """Put every matrix elsewhere, and the tables that are added to embeddings; norms and angles stay."""
        move_matrices(self._linears(), to)
        self._types = self._types if self._types is None else to(self._types)
        self._positions = self._positions if self._positions is None else to(self._positions)

    def hidden(self, batch: Batch) -> Tensor:
        """Final rows [rows, hidden]."""
        stream = normed = self._embedded(batch)
        for layer in self._layers:
            branch = self._attended(layer, Rows(normed), batch)
            stream, normed = self._joined(stream, branch, layer.behind_attention)
            branch = _fed_forward(layer, Rows(normed))
            stream, normed = self._joined(stream, branch, layer.behind_mlp)
        return normed

    def logits(self, hidden: Tensor, slots: Tensor, adapters: SlotAdapters | None) -> Tensor:
        """Raises ValueError: no token follows."""
        raise ValueError(f"{self.spec.architecture} is an encoder, which draws no tokens.")

    def embedded(self, token_ids: Tensor) -> Tensor:
        return scheme_of(self._embedding.parts[0]).rows(token_ids)

    def _embedded(self, batch: Batch) -> Tensor:
        """norm(token + type + position), added in fp32"""
        rows = self.embedded(batch.token_ids)
        added = rows.float()
        if self._positions is not None:
            added += self._positions[batch.positions]
        if self._types is not None:
            second = batch.positions >= batch.type_from[batch.row_slots]
            added += self._types[second.int().clamp(max=len(self._types) - 1)]
        return layer_norm(added, *self._embedding_norm, self.spec.norm_eps, rows)

    def _joined(self, stream: Tensor, branch: Tensor, norm: _Norm) -> tuple[Tensor, Tensor]:
        """The stream that goes on, and its rows for the next branch.

        It becomes the sum, or what norms behind branches make of that.
        """
        normed = layer_norm(branch, *norm, self.spec.norm_eps, branch, residual=stream)
        return stream if self.spec.pre_norm else normed, normed

    def _attended(self, layer: _Layer, x: Rows, batch: Batch) -> Tensor:
        """out(attend(rope(qkv(x))))"""
        attention = layer.spec.attention
        heads, kv_heads = attention.heads, attention.kv_heads
        qkv = product(layer.weights.qkv, x)
        qkv = qkv.view(len(qkv), -1, attention.head_dim)  # [rows, all heads, head_dim]
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.rotation is not None:
            rope_and_store(
                q, k, v, None, None, None, batch.row_slots, batch.positions, rotation=layer.rotation
            )
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        contiguous_attention(
            q,
            k,
            v,
            batch.query_start,
            out,
            scale=attention.scale,
            window=attention.window,
            max_query=batch.max_query,
            causal=False,
        )
        return product(layer.weights.out, Rows(out.flatten(1)))

    def _linears(self) -> Iterator[FusedLinear]:
        yield self._embedding
        for layer in self._layers:
            weights = layer.weights
            yield from (weights.qkv, weights.out, weights.inner, weights.down)


def _roles_behind(spec: EncoderSpec, layer: int) -> tuple[str, str]:
    """The norms behind a layer's attention and behind its MLP."""
    if not spec.pre_norm:
        return f"{layer}.attention_norm", f"{layer}.mlp_norm"
    following = layer + 1
    return f"{layer}.mlp_norm", "norm" if following == len(spec.layers) else f"{following}.attention_norm"


def _fed_forward(layer: _Layer, x: Rows) -> Tensor:
    """down(act(gate(x)) · up(x)), or down(act(up(x)))"""
    mlp, weights = layer.spec.mlp, layer.weights
    made_for = gated_for if mlp.gated else activated_for
    return product(weights.down, made_for(weights.down, product(weights.inner, x), mlp.activation))
