"""Lowers an encoder to a program: once, at load; a step then runs the list of operations in one C call."""

from __future__ import annotations

from functools import partial

from slipway.model.encoder_spec import EncoderLayer, EncoderSpec
from slipway.model.encoder_weights import EncoderLayerWeights, EncoderWeights
from slipway.schemes.fused import FusedLinear
from slipway.worker.lowering import Buffers, lower_gated
from slipway_kernels.cpu import Buffer, EncoderProgram


def lower_encoder(spec: EncoderSpec, weights: EncoderWeights, program: EncoderProgram) -> None:
    """Add the encoder's operations to `program`, in the order of computation, and finish it.

    The residual stream ends as the final rows, which are told as `StepResult.hidden`.
    """
    lowering = _Lowering(spec, weights, program)
    lowering.embed()
    for number, (layer, parts) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        lowering.attention(number, layer, parts)
        lowering.feed_forward(number, layer, parts)
    if spec.pre_norm:
        lowering.norm("norm", keep=True)
    program.hidden(lowering.residual, None)
    program.finish()


class _Lowering:
    """The operations of layers."""

    def __init__(self, spec: EncoderSpec, weights: EncoderWeights, program: EncoderProgram) -> None:
        self.spec = spec
        self.weights = weights
        self.program = program
        self._buffers = Buffers(program, spec.hidden, (layer.attention for layer in spec.layers))
        self.residual, self._normed = self._buffers.residual, self._buffers.normed

    def embed(self) -> None:
        """residual = norm(token + type + position)"""
        arrays, first = self.weights.arrays, self.spec.first_position
        positions = arrays.get("positions.weight")
        self.program.embed_sum(
            self.weights.embedding.whole,
            self.residual,
            None if positions is None else positions[first:],
            arrays.get("types.weight"),
        )
        self.norm("embedding_norm", keep=True)

    def attention(self, number: int, layer: EncoderLayer, weights: EncoderLayerWeights) -> None:
        """residual = norm(residual + attended), or with norms before residual += attended"""
        attention = layer.attention
        width = attention.heads * attention.head_dim
        qkv = self._buffers.of("qkv", weights.qkv.n)
        queries, attended = (
            self._buffers.of("queries", width, "act"),
            self._buffers.of("attended", width, "act"),
        )
        if self.spec.pre_norm and number:
            self.norm(f"{number}.attention_norm")
        self._linear(self._normed, weights.qkv, qkv)
        self.program.attend_within(
            *(qkv, queries, attended, attention.heads, attention.kv_heads, attention.head_dim),
            self._buffers.angles.get(attention.rope),
            0 if attention.rope is None else attention.rope.rotary_dim,
            attention.scale,
            attention.window,
        )
        self._linear(attended, weights.out, self.residual, accumulate=True)
        if not self.spec.pre_norm:
            self.norm(f"{number}.attention_norm", keep=True)

    def feed_forward(self, number: int, layer: EncoderLayer, weights: EncoderLayerWeights) -> None:
        """residual = norm(residual + mlp(residual)), or with norms before residual += mlp(norm(residual))"""
        mlp = layer.mlp
        inner = self._buffers.of("inner", mlp.intermediate, "act")
        if self.spec.pre_norm:
            self.norm(f"{number}.mlp_norm")
        if mlp.gated:
            sums = partial(self._buffers.of, "sums")
            lower_gated(self.program, self._normed, weights.inner, inner, mlp.activation, sums)
        else:
            self.program.linear_activated(
                self._normed, weights.inner.whole, inner, mlp.activation, weights.inner.bias
            )
        self._linear(inner, weights.down, self.residual, accumulate=True)
        if not self.spec.pre_norm:
            self.norm(f"{number}.mlp_norm", keep=True)

    def norm(self, role: str, *, keep: bool = False) -> None:
        """Of the residual stream; where it is kept the stream goes on with it."""
        arrays = self.weights.arrays
        weight, bias = arrays[f"{role}.weight"], arrays.get(f"{role}.bias")
        self.program.layer_norm(self.residual, weight, bias, self._normed, self.spec.norm_eps, keep)

    def _linear(self, x: Buffer, weight: FusedLinear, out: Buffer, *, accumulate: bool = False) -> None:
        for part, bias in weight.products():
            self.program.linear(x, part.packed, out, bias, accumulate=accumulate, column=part.column)
