"""Lowers a decoder to a program: once, at load; a step then runs the list of operations in one C call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np

from slipway.load.arrays import BF16
from slipway.load.errors import LoadError
from slipway.model.spec import UNNORMED, DecoderSpec, Layer
from slipway.model.stage import Stage
from slipway.model.weights import LayerWeights, MlpWeights, ModelWeights, MoeWeights, Vector
from slipway.schemes.fused import FusedLinear
from slipway.worker.adapters import AdapterPlaces
from slipway.worker.lowering import Buffers, lower_gated
from slipway_kernels.cpu import Buffer, Program


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
    spec: DecoderSpec,
    weights: ModelWeights,
    program: Program,
    layer_place: tuple[tuple[int, int], ...],
    adapters: AdapterPlaces | None = None,
    tokens_from: Sequence[int] | None = None,
    *,
    stage: Stage | None = None,
    pools: bool = False,
    taps: Sequence[int] = (),
) -> None:
    """Add the decoder's operations to `program`, in the order of computation, and finish it.

    layer_place  [layer of the stage]  its KV group and its index there
    stage        whose operations these are, of rows that the one before gives and the next one takes
    adapters     is told of the operations to which adapters may add
    tokens_from  [ranks + 1]  of the vocabulary, which of it each rank has; None: all
    pools        final rows are wanted, and no logits
    taps         layers before which the rows are told; behind the last one they are normed, but as `UNNORMED`
    """
    stage = stage or Stage.whole(len(spec.layers))
    lowering = _Lowering(spec, program, adapters, tokens_from, stage)
    x = lowering.residual
    if stage.is_first:
        lowering.embed(weights)
    else:
        program.given(x)
    for lowering.layer, parts, place in zip(stage.layers, weights.layers, layer_place, strict=True):
        if lowering.layer in taps:
            program.tap(x)
        lowering.attention(spec.layers[lowering.layer], parts, place)
        lowering.feed_forward(parts)
    if not stage.is_last:
        program.tap(x)
        program.draw_elsewhere()
    else:
        lowering.end(weights, pools=pools, taps=taps)
    program.finish()


class _Lowering:
    """The operations of layers, and of what is before and behind them."""

    layer = 0
    """That is being lowered."""

    def __init__(
        self,
        spec: DecoderSpec,
        program: Program,
        adapters: AdapterPlaces | None,
        tokens_from: Sequence[int] | None,
        stage: Stage,
    ) -> None:
        self.spec = spec
        self.program = program
        self._adapters = adapters
        self._tokens_from = tokens_from
        attentions = (spec.layers[layer].attention for layer in stage.layers)
        self._buffers = Buffers(program, spec.hidden, attentions)
        self.residual, self._normed = self._buffers.residual, self._buffers.normed
        self._parts = [program.buffer_of_ranks(spec.hidden) for _ in range(3)] if program.ranks else []

    @contextmanager
    def joined(self, out: Buffer, *, accumulate: bool = False) -> Iterator[Buffer]:
        """Where to write what ranks add up to `out`: itself where there is one, whose products accumulate."""
        if self.program.ranks is None:
            yield out
            return
        # While some still read the sums of one part, others may write the next: two serve by turns. The first
        # one of a step is used once, for ranks need not have met since the last one of the step before.
        part = self._parts.pop(0)
        yield part
        self.program.from_ranks(part, out, accumulate=accumulate)
        if len(self._parts) == 1:
            self._parts.append(part)

    def embed(self, weights: ModelWeights) -> None:
        scale = self.spec.embedding_scale
        if self.program.dtype == "bf16":  # the models multiply in their own type
            scale = float(np.array(scale, BF16))
        x, shared = self.residual, self._tokens_from is not None
        with self.joined(x) if shared else nullcontext(x) as rows:
            self.program.embed(weights.embedding.whole, rows, scale, self._tokens_from)
            if self._adapters is not None:
                self._adapters.add_embedding(rows)

    def end(self, weights: ModelWeights, *, pools: bool, taps: Sequence[int]) -> None:
        """What is made of the last layer's rows."""
        x, spec, program = self.residual, self.spec, self.program
        norm = weights.norm.values, spec.norm_eps, spec.norm_add_one
        if UNNORMED in taps:
            program.tap(x)
        if len(spec.layers) in taps:
            program.tap(x, *norm)
        if pools:
            program.hidden(x, *norm)
            return
        program.head(
            x,
            weights.norm.values,
            weights.head.whole,
            spec.norm_eps,
            add_one=spec.norm_add_one,
            bias=weights.head.bias,
            softcap=spec.logit_softcap,
            tokens_from=self._tokens_from,
        )
        if self._adapters is not None:
            self._adapters.add_head(x, weights.head)

    def attention(self, layer: Layer, weights: LayerWeights, place: tuple[int, int]) -> None:
        """residual += out(attend(rope(qkv(norm(residual)))))"""
        attention, rope = layer.attention, layer.attention.rope
        shape = attention.heads, attention.kv_heads, attention.head_dim
        width = attention.heads * attention.head_dim
        qkv = self._buffers.of("qkv", weights.qkv.n)
        queries, attended = (
            self._buffers.of("queries", width, "act"),
            self._buffers.of("attended", width, "act"),
        )
        self._norm(weights.norms["attention_norm"])
        self._linear(self._normed, weights.qkv, qkv)
        self.program.rope_and_store(
            qkv,
            queries,
            place,
            *shape,
            self._buffers.angles.get(rope),
            0 if rope is None else rope.rotary_dim,
            weights.norms["q_norm"].values if attention.qk_norm else None,
            weights.norms["k_norm"].values if attention.qk_norm else None,
            self.spec.norm_eps,
            self.spec.norm_add_one,
            () if rope is None or self._adapters is None else self._adapters.rotations(rope),
        )
        self.program.attention(
            queries, attended, place, *shape, attention.scale, attention.window, attention.softcap
        )
        self._join(attended, weights.out, weights.norms.get("attention_post_norm"))

    def feed_forward(self, weights: LayerWeights) -> None:
        """residual += mlp(norm(residual))"""
        self._norm(weights.norms["mlp_norm"])
        if isinstance(weights.mlp, MlpWeights):
            self._join(self._inner(weights.mlp), weights.mlp.down, weights.norms.get("mlp_post_norm"))
        else:
            self._experts(weights.mlp)

    def _experts(self, weights: MoeWeights) -> None:
        """Of the experts that are here, and of what all rows see."""
        moe = weights.spec
        with self.joined(self.residual, accumulate=True) as out:
            self.program.moe(
                self._normed,
                weights.router.whole,
                [expert.gate_up.whole for expert in weights.experts],
                [expert.down.whole for expert in weights.experts],
                out,
                moe.top_k,
                moe.normalize_top_k,
                moe.activation,
                first=moe.held.start,
                accumulate=out is self.residual,
            )
            if self._adapters is not None:
                self._adapters.add_experts(self._normed, weights, self.layer)
            if weights.shared and weights.shared_scale:
                branch, gate = self._buffers.of("branch", self.spec.hidden), self._buffers.of("gate", 1)
                self._linear(self._inner(weights.shared), weights.shared.down, branch)
                self._linear(self._normed, weights.shared_scale, gate)
                self.program.add_gated(branch, gate, out)

    def _inner(self, weights: MlpWeights) -> Buffer:
        """activation(gate(x)) · up(x) of the normed rows."""
        mlp, gate_up = weights.spec, weights.gate_up
        inner = self._buffers.of("inner", mlp.intermediate, "act")
        sums = partial(self._buffers.of, "sums")
        adapt = partial(self._adapt, self._normed, gate_up)
        lower_gated(self.program, self._normed, gate_up, inner, mlp.activation, sums, adapt)
        return inner

    def _join(self, x: Buffer, weight: FusedLinear, post_norm: Vector | None) -> None:
        """Add a branch's last product to the residual stream, normed first in a sandwich."""
        if post_norm is None:
            with self.joined(self.residual, accumulate=True) as part:
                self._linear(x, weight, part, accumulate=part is self.residual)
            return
        branch = self._buffers.of("branch", self.spec.hidden)
        with self.joined(branch) as part:
            self._linear(x, weight, part)
        self.program.rms_norm(
            branch,
            post_norm.values,
            self.residual,
            self.spec.norm_eps,
            self.spec.norm_add_one,
            accumulate=True,
        )

    def _norm(self, weight: Vector) -> None:
        spec = self.spec
        self.program.rms_norm(self.residual, weight.values, self._normed, spec.norm_eps, spec.norm_add_one)

    def _linear(self, x: Buffer, weight: FusedLinear, out: Buffer, *, accumulate: bool = False) -> None:
        for part, bias in weight.products():
            self.program.linear(
                x,
                part.packed,
                out,
                bias,
                accumulate=accumulate,
                column=part.column,
            )
            self._adapt(x, weight, part.column, part.end)

    def _adapt(self, x: Buffer, weight: FusedLinear, column: int, end: int) -> None:
        """Let adapters add to the product that was added last."""
        if self._adapters is not None:
            self._adapters.add(x, weight, column, end, self.layer)
