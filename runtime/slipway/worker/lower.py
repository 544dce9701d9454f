"""Lowers a decoder to a program: once, at load; a step then runs the list of operations in one C call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipway.load.arrays import BF16, Floats
from slipway.load.errors import LoadError
from slipway.model.rope import cos_sin
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp, Moe, Rope
from slipway.model.weights import LayerWeights, MlpWeights, ModelWeights, MoeWeights, Vector
from slipway.schemes.fused import FusedLinear
from slipway_kernels.cpu import Adapter, Buffer, Packed, Program, Weight


def check_lowered(spec: DecoderSpec) -> None:
    """Raises LoadError where the program has no operation for something that the specification has."""
    for what, name in (("attention sinks", "sinks"), ("ALiBi", "alibi")):
        if any(getattr(layer.attention, name) for layer in spec.layers):
            raise LoadError(
                "UnsupportedModel",
                f"{spec.architecture} has {what}, which attention on CPU does not compute.",
                hint="Serve it with --device cuda.",
                argument="device",
            )


def lower(
    spec: DecoderSpec, weights: ModelWeights, program: Program, layer_place: tuple[tuple[int, int], ...]
) -> None:
    """Add the decoder's operations to `program`, in the order of computation, and finish it.

    layer_place  [layer]  its KV group and its index there
    """
    lowering = _Lowering(spec, program, _Buffers.of(spec, program))
    scale = spec.embedding_scale
    if program.dtype == "bf16":  # the models multiply in their own type
        scale = float(np.array(scale, BF16))
    x = lowering.buffers.residual
    program.embed(weights.embedding.whole, x, scale)
    for layer, parts, place in zip(spec.layers, weights.layers, layer_place, strict=True):
        lowering.attention(layer, parts, place)
        lowering.feed_forward(layer, parts)
    program.head(
        x,
        weights.norm.values,
        weights.head.whole,
        spec.norm_eps,
        add_one=spec.norm_add_one,
        bias=weights.head.bias,
        softcap=spec.logit_softcap,
    )
    program.finish()


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Where the operations meet, shared by all layers; one for each width that layers differ in."""

    residual: Buffer
    """[rows, hidden] fp32"""
    normed: Buffer
    """[rows, hidden]"""
    branch: Buffer | None
    """[rows, hidden] fp32: what is normed, or scaled, before it joins the residual stream"""
    gate: Buffer | None
    """[rows, 1] fp32: the shared expert's"""
    heads: dict[tuple[int, int, int], tuple[Buffer, Buffer, Buffer]]
    """by shape: q, k and v in fp32, the queries, what they attended to"""
    inner: dict[int, Buffer]
    """[rows, intermediate] by that width"""

    @classmethod
    def of(cls, spec: DecoderSpec, program: Program) -> _Buffers:
        plain = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, Mlp)]
        shared = [
            layer.mlp.shared for layer in spec.layers if isinstance(layer.mlp, Moe) and layer.mlp.shared
        ]
        heads = {}
        for shape in {_shape(layer.attention) for layer in spec.layers}:
            queries, keys = shape[0] * shape[2], shape[1] * shape[2]
            heads[shape] = (
                program.buffer(queries + 2 * keys),
                program.buffer(queries, "act"),
                program.buffer(queries, "act"),
            )
        return cls(
            residual=program.buffer(spec.hidden),
            normed=program.buffer(spec.hidden, "act"),
            branch=program.buffer(spec.hidden) if spec.sandwich or shared else None,
            gate=program.buffer(1) if shared else None,
            heads=heads,
            inner={
                width: program.buffer(width, "act") for width in {mlp.intermediate for mlp in plain + shared}
            },
        )


def _shape(attention: Attention) -> tuple[int, int, int]:
    return attention.heads, attention.kv_heads, attention.head_dim


class _Lowering:
    def __init__(self, spec: DecoderSpec, program: Program, buffers: _Buffers) -> None:
        self.spec = spec
        self.program = program
        self.buffers = buffers
        self._tables: list[tuple[Rope, Floats]] = []

    def attention(self, layer: Layer, weights: LayerWeights, place: tuple[int, int]) -> None:
        """residual += out(attend(rope(qkv(norm(residual)))))"""
        attention = layer.attention
        shape = _shape(attention)
        qkv, queries, attended = self.buffers.heads[shape]
        self._norm(weights.norms["attention_norm"])
        self._linear(self.buffers.normed, weights.qkv, qkv)
        self.program.rope_and_store(
            qkv,
            queries,
            place,
            *shape,
            None if attention.rope is None else self._table(attention.rope),
            0 if attention.rope is None else attention.rope.rotary_dim,
            weights.norms["q_norm"].values if attention.qk_norm else None,
            weights.norms["k_norm"].values if attention.qk_norm else None,
            self.spec.norm_eps,
            self.spec.norm_add_one,
        )
        self.program.attention(
            queries, attended, place, *shape, attention.scale, attention.window, attention.softcap
        )
        self._join(attended, weights.out, weights.norms.get("attention_post_norm"))

    def feed_forward(self, layer: Layer, weights: LayerWeights) -> None:
        """residual += mlp(norm(residual))"""
        self._norm(weights.norms["mlp_norm"])
        if isinstance(layer.mlp, Mlp) and isinstance(weights.mlp, MlpWeights):
            inner = self._inner(layer.mlp, weights.mlp)
            self._join(inner, weights.mlp.down, weights.norms.get("mlp_post_norm"))
        elif isinstance(layer.mlp, Moe) and isinstance(weights.mlp, MoeWeights):
            self._experts(layer.mlp, weights.mlp)

    def _experts(self, moe: Moe, weights: MoeWeights) -> None:
        buffers, program = self.buffers, self.program
        program.moe(
            buffers.normed,
            weights.router.whole,
            [expert.gate_up.whole for expert in weights.experts],
            [expert.down.whole for expert in weights.experts],
            buffers.residual,
            moe.top_k,
            moe.normalize_top_k,
            moe.activation,
        )
        if moe.shared and weights.shared and weights.shared_scale and buffers.branch and buffers.gate:
            self._linear(self._inner(moe.shared, weights.shared), weights.shared.down, buffers.branch)
            self._linear(buffers.normed, weights.shared_scale, buffers.gate)
            program.add_gated(buffers.branch, buffers.gate, buffers.residual)

    def _inner(self, mlp: Mlp, weights: MlpWeights) -> Buffer:
        """activation(gate(x)) · up(x) of the normed rows."""
        inner = self.buffers.inner[mlp.intermediate]
        gate_up = weights.gate_up
        self.program.linear_gated(
            self.buffers.normed,
            gate_up.whole,
            inner,
            mlp.activation,
            gate_up.bias,
            self._adapters(gate_up, 0, gate_up.whole),
        )
        return inner

    def _join(self, x: Buffer, weight: FusedLinear, post_norm: Vector | None) -> None:
        """Add a branch's last product to the residual stream, normed first in a sandwich."""
        buffers = self.buffers
        if post_norm is None or buffers.branch is None:
            self._linear(x, weight, buffers.residual, accumulate=True)
            return
        self._linear(x, weight, buffers.branch)
        self.program.rms_norm(
            buffers.branch,
            post_norm.values,
            buffers.residual,
            self.spec.norm_eps,
            self.spec.norm_add_one,
            accumulate=True,
        )

    def _norm(self, weight: Vector) -> None:
        buffers, spec = self.buffers, self.spec
        self.program.rms_norm(
            buffers.residual, weight.values, buffers.normed, spec.norm_eps, spec.norm_add_one
        )

    def _linear(self, x: Buffer, weight: FusedLinear, out: Buffer, *, accumulate: bool = False) -> None:
        for part, bias in weight.products():
            self.program.linear(
                x,
                part.packed,
                out,
                bias,
                accumulate=accumulate,
                column=part.column,
                adapters=self._adapters(weight, part.column, part.packed),
            )

    def _adapters(self, linear: FusedLinear, column: int, weight: Weight) -> list[Adapter | None]:
        """What each adapter adds to a part of a layer, packed; nothing where none adds to the layer."""
        if not linear.adapters:
            return []
        packed: list[Adapter | None] = [None] * (max(linear.adapters) + 1)
        for index, (a, b) in linear.adapters.items():
            factors = a, b[column : column + weight.n]
            low, high = (Packed(len(one), one.shape[1], self.program.dtype) for one in factors)
            low.load_rows(a, threads=self.program.threads)
            high.load_rows(factors[1], threads=self.program.threads)
            packed[index] = low, high
        return packed

    def _table(self, rope: Rope) -> Floats:
        """The rotation's table, one for all layers that share it."""
        for known, table in self._tables:
            if known == rope:
                return table
        self._tables.append((rope, cos_sin(rope, self.program.slots.max_len)))
        return self._tables[-1][1]
