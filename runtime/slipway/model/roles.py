"""Which weights a decoder has, and what its checkpoint calls them.

A weight is known by its key: `embedding.weight`, `3.q.bias`, `3.expert_gate.7.weight`; that is the layer,
the role, the expert, and whether it is a matrix (or norm) or a bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from slipway.load.arrays import Array
from slipway.load.cut import Stored
from slipway.model.registry import Family
from slipway.model.spec import Attention, DecoderSpec, Mlp, Moe

Place = tuple[int, str, int]
"""Layer, role and expert of a matrix, with or without a bias; -1 where there is none."""

ADDED_UP = frozenset(("out", "down", "shared_down", "expert_down"))
"""Roles whose results are added up over ranks, each of which has some of the columns."""
ROLES_BY_ROWS = frozenset(("q", "k", "v", "gate", "up", "shared_gate", "shared_up"))
"""Of each of which a rank has some of the rows, beside experts, the embedding and the head."""
_IGNORED = (".rotary_emb.inv_freq",)
"""Buffers that older checkpoints carry and that follow from the configuration."""
_INNERMOST = ("layers.", "embed_tokens.", "norm.")
"""How names begin in a checkpoint of the decoder alone, without the class that has a head."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a checkpoint. `layer` and `expert` are -1 where there is none."""

    role: str
    shape: tuple[int, ...]
    layer: int = -1
    expert: int = -1
    kind: str = "weight"

    @property
    def place(self) -> Place:
        return self.layer, self.role, self.expert

    @property
    def key(self) -> str:
        parts = (self.layer, self.role, self.expert, self.kind)
        return ".".join(str(part) for part in parts if part != -1)

    def name(self, family: Family) -> str:
        numbers = [number for number in (self.layer, self.expert) if number >= 0]
        return f"{family.names[self.role].format(*numbers)}.{self.kind}"


def expected(spec: DecoderSpec, family: Family) -> dict[str, Entry]:
    """Every tensor that the checkpoint must have, by its name there."""
    return {entry.name(family): entry for entry in entries_of(spec)}


def expected_shapes(spec: DecoderSpec, family: Family) -> dict[str, tuple[int, ...]]:
    """Shapes by the checkpoint's names, for random weights."""
    return {name: entry.shape for name, entry in expected(spec, family).items()}


def is_ignored(name: str, spec: DecoderSpec, family: Family) -> bool:
    """Whether a tensor may be there and is not needed: a copy of the tied embedding, a derived buffer, or a
    part of what guesses for the model."""
    copied = spec.tied_embedding and name == f"{family.names['head']}.weight"
    return copied or name.endswith(_IGNORED) or name.startswith(family.guessing)


def usual(name: str, family: Family) -> str:
    """The name that `family.names` gives a tensor, whatever the release or the class that wrote it."""
    if name.startswith(_INNERMOST) and family.names["norm"].startswith("model."):
        name = f"model.{name}"
    for theirs, ours in family.aliases.items():
        name = name.replace(theirs, ours)
    return name


def unstacked(name: str, stored: Stored, family: Family) -> Iterator[tuple[str, Stored]]:
    """The tensor by its usual name; one that holds all experts of a layer, expert by expert.

    transformers 5 keeps experts as `experts.gate_up_proj` [experts, 2 · intermediate, hidden] and
    `experts.down_proj` [experts, hidden, intermediate].
    """
    name = usual(name, family)
    prefix, _, last = name.rpartition(".")
    stacked = prefix.endswith(".experts") and last in ("gate_up_proj", "down_proj")
    if stacked and len(stored.shape) == 3:
        layer = next(part for part in prefix.split(".") if part.isdecimal())
        roles = ("expert_gate", "expert_up") if last == "gate_up_proj" else ("expert_down",)
        for expert, matrix in enumerate(cast(Array, stored.read())):
            for role, half in zip(roles, np.split(matrix, len(roles)), strict=True):
                yield f"{family.names[role].format(layer, expert)}.weight", Stored.plain(half)
    else:
        yield name, stored


def entries_of(spec: DecoderSpec) -> Iterator[Entry]:
    """Every tensor of a decoder, or of a rank's part of one."""
    yield Entry("embedding", (spec.vocab, spec.hidden))
    yield Entry("norm", (spec.hidden,))
    if not spec.tied_embedding:
        yield from _matrix("head", (spec.vocab, spec.hidden), spec.head_bias)
    for number, score in enumerate(spec.scores):
        role = "score" if len(spec.scores) == 1 else f"score_{number}"
        yield from _matrix(role, (score.scores, score.columns), score.bias)
    for number, layer in enumerate(spec.layers):
        yield from _attention(spec, layer.attention, number)
        if isinstance(layer.mlp, Mlp):
            yield from _mlp(spec, layer.mlp, number)
        else:
            yield from _moe(spec, layer.mlp, number)


def _matrix(
    role: str, shape: tuple[int, int], bias: bool = False, layer: int = -1, expert: int = -1
) -> Iterator[Entry]:
    yield Entry(role, shape, layer, expert)
    if bias:
        yield Entry(role, shape[:1], layer, expert, "bias")


def _attention(spec: DecoderSpec, attention: Attention, number: int) -> Iterator[Entry]:
    """With the norms of its layer."""
    hidden, dim = spec.hidden, attention.head_dim
    queries, keys = attention.heads * dim, attention.kv_heads * dim
    for role, rows in (("q", queries), ("k", keys), ("v", keys)):
        yield from _matrix(role, (rows, hidden), attention.qkv_bias, number)
    yield from _matrix("out", (hidden, queries), attention.out_bias, number)
    vectors = {"attention_norm": hidden, "mlp_norm": hidden}
    if attention.qk_norm:
        vectors |= {"q_norm": dim, "k_norm": dim}
    if attention.sinks:
        vectors["sinks"] = attention.heads
    if spec.sandwich:
        vectors |= {"attention_post_norm": hidden, "mlp_post_norm": hidden}
    for role, size in vectors.items():
        yield Entry(role, (size,), number)


def _mlp(spec: DecoderSpec, mlp: Mlp, number: int, prefix: str = "", expert: int = -1) -> Iterator[Entry]:
    for role in ("gate", "up"):
        yield from _matrix(f"{prefix}{role}", (mlp.intermediate, spec.hidden), mlp.bias, number, expert)
    yield from _matrix(f"{prefix}down", (spec.hidden, mlp.intermediate), mlp.bias, number, expert)


def _moe(spec: DecoderSpec, moe: Moe, number: int) -> Iterator[Entry]:
    yield Entry("router", (moe.experts, spec.hidden), number)
    for expert in moe.held:
        yield from _mlp(spec, moe.expert, number, "expert_", expert)
    if moe.shared is not None:
        yield from _mlp(spec, moe.shared, number, "shared_")
        yield Entry("shared_scale", (1, spec.hidden), number)
