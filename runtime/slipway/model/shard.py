"""What a rank holds of a model: its part of each matrix, cut where heads, codes and blocks of scales end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm

from slipway.load.cut import ALL, Cut, Part
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.model.roles import Place
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp, Moe

_STEPS = (32, 8, 1)
"""Rows or columns that stay together where there are enough: those whose activations share a scale on CPU,
then those whose codes share a word."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's place among those that share every matrix."""

    rank: int = 0
    size: int = 1

    def of(self, count: int, step: int, what: str) -> slice:
        """This rank's of `count` in whole steps, as even as can be. Raises LoadError for too few of them."""
        if self.size == 1:
            return ALL
        steps = -(-count // step)
        if steps < self.size:
            raise LoadError(
                "UnsupportedModel",
                f"--tensor-parallel-size {self.size} cannot cut {count} {what} that come by {step}.",
                hint=f"The largest that fits is {steps}.",
                argument="tensor_parallel_size",
            )
        begin, end = (steps * rank // self.size * step for rank in (self.rank, self.rank + 1))
        return slice(begin, min(end, count))


WHOLE_MODEL = Shard()


@dataclass(frozen=True, slots=True)
class Sharded:
    """A rank's part of a model: its own specification, and how it reads each matrix.

    cuts   of the matrices that are not read whole and as they stand
    forms  of the quantized matrices as they are then
    Queries, keys, values, gate and up are cut by rows, out and down by columns: their results are added up
    over the ranks, so their bias is rank 0's. The order of down's columns (act-order) becomes that of the
    rows of gate and up, whatever the size: what they make comes as down wants it, and nothing is gathered.
    """

    spec: DecoderSpec
    cuts: Mapping[Place, Cut]
    forms: Mapping[Place, Form]


def sharded(spec: DecoderSpec, forms: Mapping[Place, Form], shard: Shard, *, packed: bool = True) -> Sharded:
    """Raises LoadError where there are fewer heads, or blocks that share a scale, than ranks.

    forms   of the quantized matrices, whole
    packed  whether any stays as it is stored; where all are dequantized, columns stand in order anyway
    """
    if not packed:
        forms = {place: form.in_order() for place, form in forms.items()}
    cuts: dict[Place, Cut] = {}
    embedding, head = (-1, "embedding", -1), (-1, "head", -1)
    vocabulary = _inner(spec.vocab, shard, lcm(_step(forms, embedding, 0), _step(forms, head, 0)))
    if vocabulary is not ALL:
        cuts[embedding] = cuts[head] = Cut(rows=vocabulary)
    layers = []
    for number, layer in enumerate(spec.layers):
        attention = _attention(number, layer.attention, forms, shard, cuts)
        mlp = layer.mlp
        if isinstance(mlp, Mlp):
            mlp = _mlp(number, -1, mlp, ("gate", "up", "down"), forms, shard, cuts)
        else:
            mlp = _moe(number, mlp, forms, shard, cuts)
        layers.append(Layer(attention, mlp))
    local = replace(spec, layers=tuple(layers), vocab=_size(vocabulary, spec.vocab))
    kept = {place: form.cut(cuts[place].columns) if place in cuts else form for place, form in forms.items()}
    return Sharded(local, cuts, kept)


def _attention(
    number: int, attention: Attention, forms: Mapping[Place, Form], shard: Shard, cuts: dict[Place, Cut]
) -> Attention:
    """Whole groups of the heads that share a key head, or one key head for several ranks."""
    if shard.size == 1:
        return attention
    dim, heads, kv_heads = attention.head_dim, attention.heads, attention.kv_heads
    share = heads // kv_heads
    steps = {role: _step(forms, (number, role, -1), role == "out") for role in ("q", "k", "v", "out")}
    alone = lcm(steps["q"], steps["out"], dim) // dim  # heads that no block of scales lets part
    keys = lcm(steps["k"], steps["v"], dim) // dim
    if kv_heads >= shard.size or keys > 1:
        kv = shard.of(kv_heads, lcm(keys, lcm(alone, share) // share), "key heads")
        q = slice(kv.start * share, kv.stop * share)
    else:
        shard.of(heads, alone, "heads")
        head = shard.rank * kv_heads // shard.size
        first, end = (-(-one * shard.size // kv_heads) for one in (head, head + 1))  # ranks that have it
        part = Shard(shard.rank - first, end - first).of(share, alone, "heads").indices(share)
        q = slice(head * share + part[0], head * share + part[1])
        kv = slice(head, head + 1)
    queries, others = (slice(one.start * dim, one.stop * dim) for one in (q, kv))
    cuts[number, "q", -1] = Cut(rows=queries)
    cuts[number, "k", -1] = cuts[number, "v", -1] = Cut(rows=others)
    cuts[number, "out", -1] = Cut(columns=queries)
    return replace(attention, heads=q.stop - q.start, kv_heads=kv.stop - kv.start)


def _mlp(
    number: int,
    expert: int,
    mlp: Mlp,
    roles: tuple[str, str, str],
    forms: Mapping[Place, Form],
    shard: Shard,
    cuts: dict[Place, Cut],
) -> Mlp:
    gate, up, down = ((number, role, expert) for role in roles)
    step = lcm(_step(forms, gate, 0), _step(forms, up, 0), _step(forms, down, 1))
    inner: Part = _inner(mlp.intermediate, shard, step)
    width = _size(inner, mlp.intermediate)
    if down in forms and forms[down].columns is not ALL:
        inner = forms[down].columns[inner]
    if inner is not ALL:
        cuts[gate] = cuts[up] = Cut(rows=inner)
        cuts[down] = Cut(columns=inner)
    return replace(mlp, intermediate=width)


def _moe(number: int, moe: Moe, forms: Mapping[Place, Form], shard: Shard, cuts: dict[Place, Cut]) -> Moe:
    """Every rank has its part of each expert; whom a row chooses, all ranks decide alike."""
    one = Mlp(moe.intermediate, moe.activation)
    for expert in range(moe.experts):
        roles = ("expert_gate", "expert_up", "expert_down")
        local = _mlp(number, expert, one, roles, forms, shard, cuts)
    shared = moe.shared
    if shared is not None:
        shared = _mlp(number, -1, shared, ("shared_gate", "shared_up", "shared_down"), forms, shard, cuts)
    return replace(moe, intermediate=local.intermediate, shared=shared)


def _inner(count: int, shard: Shard, step: int) -> slice:
    """Of rows and columns between two products, which stand together where that is possible."""
    together = next((one for one in _STEPS if -(-count // lcm(one, step)) >= shard.size), 1)
    return shard.of(count, lcm(together, step), "rows")


def _step(forms: Mapping[Place, Form], place: Place, axis: int) -> int:
    """Rows (0) or columns (1) that share a scale and are not parted."""
    return forms[place].steps[axis] if place in forms else 1


def _size(part: slice, count: int) -> int:
    return len(range(*part.indices(count)))
