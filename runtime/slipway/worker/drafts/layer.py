"""A decoder layer of what goes on from the target's rows, as operations of its program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipway.load.arrays import Floats
from slipway.model.rope import cos_sin
from slipway.model.spec import Attention, DecoderSpec, Mlp
from slipway.schemes.choice import Schemes
from slipway.schemes.fused import FusedLinear
from slipway.worker.drafts.tensors import Tensors
from slipway.worker.lowering import lower_gated
from slipway.worker.route import Model
from slipway_kernels.cpu import Buffer, LinkedProgram, Weight

FIRST_ROW = 1
"""Position of the first row that has one of the target before it; the row at 0 goes on from nothing."""


class Joint:
    """Matrices beneath each other, over inputs beside each other: y = Σ x_i · W_iᵀ + b, summed in order."""

    def __init__(self, tensors: Tensors, names: Sequence[str], schemes: Schemes, inputs: int = 1) -> None:
        """names: of the tensors, without .weight and .bias, which all of them have or none."""
        self._pieces = tensors.pieces(names, schemes, inputs)

    @property
    def rows(self) -> int:
        return self._pieces[0].n

    def add(
        self, program: LinkedProgram, inputs: Sequence[Buffer], out: Buffer, *, accumulate: bool = False
    ) -> None:
        """out = (or +=) y.   inputs act, out fp32"""
        for x, piece in zip(inputs, self._pieces, strict=True):
            for part, bias in piece.products():
                program.linear(x, part.packed, out, bias, accumulate=accumulate, column=part.column)
            accumulate = True


@dataclass(frozen=True, slots=True)
class DraftLayer:
    """Its weights. inputs: rows of so many, normed, stand beside each other where it makes queries."""

    attention: Attention
    mlp: Mlp
    eps: float
    qkv: Joint
    out: Joint
    gate_up: FusedLinear
    down: Joint
    mlp_norm: Floats

    @classmethod
    def of(
        cls, decoder: DecoderSpec, tensors: Tensors, name: str, schemes: Schemes, inputs: int
    ) -> DraftLayer:
        """name: how its tensors begin"""
        attention, mlp = _layer(decoder)
        queries = [f"{name}.self_attn.{one}_proj" for one in "qkv"]
        return cls(
            attention,
            mlp,
            decoder.norm_eps,
            Joint(tensors, queries, schemes, inputs),
            Joint(tensors, [f"{name}.self_attn.o_proj"], schemes),
            tensors.gated(f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj", schemes),
            Joint(tensors, [f"{name}.mlp.down_proj"], schemes),
            tensors.vector(f"{name}.post_attention_layernorm"),
        )

    def add(
        self,
        program: LinkedProgram,
        inputs: Sequence[Buffer],
        x: Buffer,
        place: tuple[int, int],
        first: int = FIRST_ROW,
    ) -> None:
        """x += attention of the inputs; x += mlp(norm(x)).   inputs act, x fp32

        place  its KV group, and its index there
        first  position of its first row; those before go on from nothing
        """
        attention, rope = self.attention, self.attention.rope
        shape = attention.heads, attention.kv_heads, attention.head_dim
        qkv, normed = program.buffer(self.qkv.rows), program.buffer(x.width, "act")
        queries, attended, inner = (
            program.buffer(width, "act")
            for width in (shape[0] * shape[2], shape[0] * shape[2], self.mlp.intermediate)
        )
        angles = None
        if rope is not None:  # trained where the target's row stands, so far before the token's
            angles = cos_sin(rope, program.slots.max_len)
            angles[first:] = angles[:-first].copy()
        self.qkv.add(program, inputs, qkv)
        program.rope_and_store(qkv, queries, place, *shape, angles, 0 if rope is None else rope.rotary_dim)
        program.attention(queries, attended, place, *shape, attention.scale, attention.window, first=first)
        _join(program, self.out, attended, x)
        program.rms_norm(x, self.mlp_norm, normed, self.eps)
        lower_gated(program, normed, self.gate_up, inner, self.mlp.activation, program.buffer)
        _join(program, self.down, inner, x)


def embed(program: LinkedProgram, own: Weight | None, target: Model, out: Buffer) -> None:
    """out = rows of its own table, or of the target's, of which each rank may have some.   out fp32"""
    table, tokens_from = own or target.embedding, None if own else target.tokens_from
    assert table is not None, "a target that transformers' code runs has been refused"
    rows = out if tokens_from is None else program.buffer_of_ranks(out.width)
    program.embed(table, rows, tokens_from=tokens_from)
    if rows is not out:
        program.from_ranks(rows, out)


def head(
    program: LinkedProgram, own: Weight | None, target: Model, x: Buffer, norm: Floats | None, eps: float
) -> None:
    """Draw by its own matrix, or by the target's, of which each rank may have some."""
    matrix = own or target.output
    assert matrix is not None, "a target that transformers' code runs has been refused"
    program.head(x, norm, matrix, eps, tokens_from=None if own else target.tokens_from)


def _join(program: LinkedProgram, joint: Joint, x: Buffer, stream: Buffer) -> None:
    """stream += y, of which each rank has a part.   x act, stream fp32"""
    if program.ranks is None:
        joint.add(program, [x], stream, accumulate=True)
        return
    part = program.buffer_of_ranks(stream.width)
    joint.add(program, [x], part)
    program.from_ranks(part, stream, accumulate=True)


def layer_shapes(decoder: DecoderSpec, name: str, inputs: int = 1) -> dict[str, tuple[int, ...]]:
    """Of the tensors of a `DraftLayer`, whose names begin so."""
    return dict(_shapes(decoder, name, inputs))


def _shapes(decoder: DecoderSpec, name: str, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    attention, mlp = _layer(decoder)
    hidden, width = decoder.hidden, attention.heads * attention.head_dim
    keys = attention.kv_heads * attention.head_dim
    matrices = {
        "self_attn.q_proj": (width, inputs * hidden, attention.qkv_bias),
        "self_attn.k_proj": (keys, inputs * hidden, attention.qkv_bias),
        "self_attn.v_proj": (keys, inputs * hidden, attention.qkv_bias),
        "self_attn.o_proj": (hidden, width, attention.out_bias),
        "mlp.gate_proj": (mlp.intermediate, hidden, mlp.bias),
        "mlp.up_proj": (mlp.intermediate, hidden, mlp.bias),
        "mlp.down_proj": (hidden, mlp.intermediate, mlp.bias),
    }
    for matrix, (rows, columns, biased) in matrices.items():
        yield f"{name}.{matrix}.weight", (rows, columns)
        if biased:
            yield f"{name}.{matrix}.bias", (rows,)
    yield f"{name}.post_attention_layernorm.weight", (hidden,)


def _layer(decoder: DecoderSpec) -> tuple[Attention, Mlp]:
    """All of its layers are alike."""
    layer = decoder.layers[0]
    assert isinstance(layer.mlp, Mlp), "families of heads have no experts"
    return layer.attention, layer.mlp


def operands(program: LinkedProgram, *rows: Buffer) -> list[Buffer]:
    """The rows [*, width] as inputs of products, as they are.   rows fp32"""
    found = []
    for one in rows:
        found.append(program.buffer(one.width, "act"))
        program.activate(one, found[-1])
    return found
