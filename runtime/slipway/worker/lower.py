"""Lowers a decoder to a program: once, at load; a step then runs the list of operations in one C call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from slipway.load.checkpoint import Checkpoint, DummyCheckpoint
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.model.config import Config, texts
from slipway.model.registry import families
from slipway.model.roles import expected_shapes
from slipway.model.rope import cos_sin
from slipway.model.route import Room
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp, Moe, Rope
from slipway.model.weights import (
    CPU,
    LayerWeights,
    MlpWeights,
    ModelWeights,
    MoeWeights,
    Vector,
    forms_by_place,
    load_weights,
)
from slipway.schemes.choice import SchemeChoice, Schemes
from slipway.schemes.fused import FusedLinear
from slipway_kernels.cpu import Buffer, Program

MAX_HEAD_DIM = 256
HEAD_DIM_UNIT = 8
"""Head sizes that the attention kernel can compute: multiples of 8 up to 256."""


@dataclass(frozen=True, slots=True)
class Native:
    """A model with a specification of its own, run as a lowered program."""

    spec: DecoderSpec
    config: Config
    conversion: OnTheFly | None = None

    @property
    def architecture(self) -> str:
        return self.spec.architecture

    @property
    def vocab(self) -> int:
        return self.spec.vocab

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(layer.attention.window for layer in self.spec.layers)

    @property
    def kv_shape(self) -> tuple[int, int]:
        attentions = [layer.attention for layer in self.spec.layers]
        return max(one.kv_heads for one in attentions), max(one.head_dim for one in attentions)

    def without_windows(self) -> Native:
        layers = [replace(layer, attention=replace(layer.attention, window=0)) for layer in self.spec.layers]
        return replace(self, spec=replace(self.spec, layers=tuple(layers)))

    def converting(self, conversion: OnTheFly) -> Native:
        return replace(self, conversion=conversion)

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        places = forms_by_place(self.spec, families()[self.architecture], checkpoint, self.conversion)
        return list(places.values())

    def weights(
        self, checkpoint: Checkpoint, schemes: SchemeChoice, device: torch.device = CPU
    ) -> ModelWeights:
        """The checkpoint's, or random ones, held on `device` as `schemes` says. Raises LoadError."""
        family = families()[self.architecture]
        if isinstance(checkpoint, DummyCheckpoint):
            checkpoint.shapes, checkpoint.device = expected_shapes(self.spec, family), device
        return load_weights(self.spec, family, checkpoint, schemes, self.conversion, device)

    def build(self, checkpoint: Checkpoint, room: Room) -> Program:
        weights = self.weights(checkpoint, Schemes(room.dtype, room.threads))
        program = room.stepper(Program, self.vocab)
        lower(self.spec, weights, program, room.kv.layer_place)
        return program


def native(config: Config) -> Native:
    """The route of a model that `families/` knows.

    Raises LoadError with UnsupportedModel where its architecture, or a feature that it uses, is not there.
    """
    architecture = next(iter(texts(config, "architectures")), "")
    family = families().get(architecture)
    if family is None:
        raise LoadError(
            "UnsupportedModel",
            f"{architecture or 'A model without architectures in config.json'} has no native code here.",
            hint="Use --model-impl auto or transformers, which run it by transformers' code.",
            argument="model_impl",
        )
    spec = family.spec(config)
    for layer in spec.layers:
        size = layer.attention.head_dim
        if size % HEAD_DIM_UNIT or size > MAX_HEAD_DIM:
            raise LoadError(
                "UnsupportedModel",
                f"{architecture} has heads of {size} numbers, and the attention kernel wants a multiple of "
                f"{HEAD_DIM_UNIT} up to {MAX_HEAD_DIM}.",
                hint="Use --model-impl auto or transformers, which pad smaller heads.",
                argument="model_impl",
            )
    return Native(spec, family.complete(config))


def lower(
    spec: DecoderSpec, weights: ModelWeights, program: Program, layer_place: tuple[tuple[int, int], ...]
) -> None:
    """Add the decoder's operations to `program`, in the order of computation, and finish it.

    layer_place  [layer]  its KV group and its index there
    """
    lowering = _Lowering(spec, program, _Buffers.of(spec, program))
    scale = spec.embedding_scale
    if program.dtype == "bf16":  # the models multiply in their own type
        scale = float(torch.tensor(scale, dtype=torch.bfloat16))
    x = lowering.buffers.residual
    program.embed(weights.embedding.whole, x, scale)
    for layer, parts, place in zip(spec.layers, weights.layers, layer_place, strict=True):
        lowering.attention(layer, parts, place)
        lowering.feed_forward(layer, parts)
    program.head(
        x,
        weights.norm.values.numpy(),
        weights.head.whole,
        spec.norm_eps,
        add_one=spec.norm_add_one,
        bias=None if weights.head.bias is None else weights.head.bias.numpy(),
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
        self._tables: list[tuple[Rope, torch.Tensor]] = []

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
            None if attention.rope is None else self._table(attention.rope).numpy(),
            0 if attention.rope is None else attention.rope.rotary_dim,
            weights.norms["q_norm"].values.numpy() if attention.qk_norm else None,
            weights.norms["k_norm"].values.numpy() if attention.qk_norm else None,
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
        bias = None if gate_up.bias is None else gate_up.bias.numpy()
        self.program.linear_gated(self.buffers.normed, gate_up.whole, inner, mlp.activation, bias)
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
            post_norm.values.numpy(),
            buffers.residual,
            self.spec.norm_eps,
            self.spec.norm_add_one,
            accumulate=True,
        )

    def _norm(self, weight: Vector) -> None:
        buffers, spec = self.buffers, self.spec
        self.program.rms_norm(
            buffers.residual, weight.values.numpy(), buffers.normed, spec.norm_eps, spec.norm_add_one
        )

    def _linear(self, x: Buffer, weight: FusedLinear, out: Buffer, *, accumulate: bool = False) -> None:
        for part, bias in weight.products():
            self.program.linear(
                x,
                part.packed,
                out,
                None if bias is None else bias.numpy(),
                accumulate=accumulate,
                column=part.column,
            )

    def _table(self, rope: Rope) -> torch.Tensor:
        """The rotation's table, one for all layers that share it."""
        for known, table in self._tables:
            if known == rope:
                return table
        self._tables.append((rope, cos_sin(rope, self.program.slots.max_len)))
        return self._tables[-1][1]
