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
from slipway.model.spec import DecoderSpec, Layer, Mlp

Place = tuple[int, str, int]
"""Layer, role and expert of a matrix, with or without a bias; -1 where there is none."""

ADDED_UP = frozenset(("out", "down", "shared_down"))
"""Roles whose results are added up over ranks, each of which has some of the columns."""
_IGNORED = (".rotary_emb.inv_freq",)
"""Buffers that older checkpoints carry and that follow from the configuration."""


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
    entries = [Entry("embedding", (spec.vocab, spec.hidden)), Entry("norm", (spec.hidden,))]
    if not spec.tied_embedding:
        entries.append(Entry("head", (spec.vocab, spec.hidden)))
    if spec.head_bias:
        entries.append(Entry("head", (spec.vocab,), kind="bias"))
    for number, layer in enumerate(spec.layers):
        entries += _attention(spec, layer, number)
        entries += _feed_forward(spec, layer, number)
    return {entry.name(family): entry for entry in entries}


def expected_shapes(spec: DecoderSpec, family: Family) -> dict[str, tuple[int, ...]]:
    """Shapes by the checkpoint's names, for random weights."""
    return {name: entry.shape for name, entry in expected(spec, family).items()}


def is_ignored(name: str, spec: DecoderSpec, family: Family) -> bool:
    """Whether a tensor may be there and is not needed: a copy of the tied embedding, or a derived buffer."""
    return name.endswith(_IGNORED) or (spec.tied_embedding and name == f"{family.names['head']}.weight")


def usual(name: str, family: Family) -> str:
    """The name that `family.names` gives a tensor, whatever the release that wrote it."""
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


def _attention(spec: DecoderSpec, layer: Layer, number: int) -> Iterator[Entry]:
    attention, hidden = layer.attention, spec.hidden
    rows = {"q": attention.heads, "k": attention.kv_heads, "v": attention.kv_heads}
    for role, heads in rows.items():
        yield Entry(role, (heads * attention.head_dim, hidden), number)
        if attention.qkv_bias:
            yield Entry(role, (heads * attention.head_dim,), number, kind="bias")
    yield Entry("out", (hidden, attention.heads * attention.head_dim), number)
    if attention.out_bias:
        yield Entry("out", (hidden,), number, kind="bias")
    if attention.qk_norm:
        yield Entry("q_norm", (attention.head_dim,), number)
        yield Entry("k_norm", (attention.head_dim,), number)
    if attention.sinks:
        yield Entry("sinks", (attention.heads,), number)
    for role in ("attention_norm", "mlp_norm"):
        yield Entry(role, (hidden,), number)
    if spec.sandwich:
        for role in ("attention_post_norm", "mlp_post_norm"):
            yield Entry(role, (hidden,), number)


def _feed_forward(spec: DecoderSpec, layer: Layer, number: int) -> Iterator[Entry]:
    mlp = layer.mlp
    if isinstance(mlp, Mlp):
        yield from _mlp(spec, mlp, number, ("gate", "up", "down"))
        return
    yield Entry("router", (mlp.experts, spec.hidden), number)
    for expert in range(mlp.experts):
        yield Entry("expert_gate", (mlp.intermediate, spec.hidden), number, expert)
        yield Entry("expert_up", (mlp.intermediate, spec.hidden), number, expert)
        yield Entry("expert_down", (spec.hidden, mlp.intermediate), number, expert)
    if mlp.shared is not None:
        yield from _mlp(spec, mlp.shared, number, ("shared_gate", "shared_up", "shared_down"))
        yield Entry("shared_scale", (1, spec.hidden), number)


def _mlp(spec: DecoderSpec, mlp: Mlp, number: int, roles: tuple[str, str, str]) -> Iterator[Entry]:
    gate, up, down = roles
    for role in (gate, up):
        yield Entry(role, (mlp.intermediate, spec.hidden), number)
        if mlp.bias:
            yield Entry(role, (mlp.intermediate,), number, kind="bias")
    yield Entry(down, (spec.hidden, mlp.intermediate), number)
    if mlp.bias:
        yield Entry(down, (spec.hidden,), number, kind="bias")
