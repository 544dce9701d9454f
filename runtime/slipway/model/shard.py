"""What a rank holds of a model: its part of each matrix, cut where heads, codes and blocks of scales end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from math import lcm

from slipway.load.cut import ALL, Cut
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.model.roles import ADDED_UP, ROLES_BY_ROWS, Place
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp, Moe

_STEPS = (32, 8, 1)
"""Rows or columns that stay together where there are enough: those whose activations share a scale on CPU,
then those whose codes share a word."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's place among those that share every matrix.

    whole_experts     each expert is one rank's, and not every rank has a part of it
    whole_vocabulary  every rank has the rows of all tokens: of some of them scores are made
    cuts_adapters     ranks share both matrices of an adapter, not only the one that the model's own cut cuts
    """

    rank: int = 0
    size: int = 1
    whole_experts: bool = False
    whole_vocabulary: bool = False
    cuts_adapters: bool = False

    def of(self, count: int, step: int, what: str, otherwise: str = "") -> slice:
        """This rank's of `count` in whole steps, as even as can be; the first ranks have more.

        Raises LoadError for too few of them, with what can be done `otherwise`.
        """
        if self.size == 1:
            return ALL
        steps = -(-count // step)
        if steps < self.size:
            raise LoadError(
                "UnsupportedModel",
                f"--tensor-parallel-size {self.size} cannot cut {count} {what} that come by {step}.",
                hint=f"The largest that fits is {steps}.{otherwise}",
                argument="tensor_parallel_size",
            )
        begin, end = (-(-steps * rank // self.size) * step for rank in (self.rank, self.rank + 1))
        return slice(begin, min(end, count))

    def adds_bias(self, role: str) -> bool:
        """Whether the bias of a matrix is added here; where ranks add up their results, that is once."""
        alone = self.whole_experts and role == "expert_down"
        return self.rank == 0 or alone or role not in ADDED_UP

    def deals(self, role: str) -> bool:
        """Whether the rows of an adapter's A go to ranks in turn, by which each makes some of A · x."""
        return self.cuts_adapters and role in ROLES_BY_ROWS

    def adds_parts(self, role: str) -> bool:
        """Whether a rank has B for some of the outputs alone, once A · x has been added up over the ranks."""
        return self.cuts_adapters and role in ADDED_UP and role != "expert_down"

    @property
    def turns(self) -> slice:
        """Of rows that go to ranks in turn, this one's: of a few all ranks have as many as can be."""
        return slice(self.rank, None, self.size)

    def run(self, count: int) -> slice:
        """Of so many outputs, this rank's: they stand together."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


WHOLE_MODEL = Shard()


@dataclass
class Sharded:
    """A rank's part of a model: its own specification, and how it reads each matrix.

    spec    the whole model's at first, then the part's
    forms   of the quantized matrices, likewise
    packed  whether any stays as it is stored; where all are dequantized, columns stand in order anyway
    cuts    of the matrices that it has and does not read whole and as they stand
    Queries, keys, values, gate and up are cut by rows, out and down by columns: their results are added up
    over the ranks, so their bias is rank 0's. The order of down's columns (act-order) becomes that of the
    rows of gate and up, whatever the size: what they make comes as down wants it, and nothing is gathered.
    Raises LoadError where there are fewer heads, or blocks of scales, than ranks.
    """

    spec: DecoderSpec
    forms: Mapping[Place, Form]
    shard: Shard = WHOLE_MODEL
    packed: InitVar[bool] = True
    cuts: dict[Place, Cut] = field(default_factory=dict)
    tokens_from: list[int] = field(default_factory=list)
    """[size + 1]  of the vocabulary, which of it each rank has; empty where that is all."""

    def __post_init__(self, packed: bool) -> None:
        if not packed:
            self.forms = {place: form.in_order() for place, form in self.forms.items()}
        spec, embedding, head = self.spec, (-1, "embedding", -1), (-1, "head", -1)
        vocabulary = ALL
        if self.shard.size > 1 and not self.shard.whole_vocabulary:
            step = _together(spec.vocab, lcm(self._step(embedding, 0), self._step(head, 0)), self.shard.size)
            ranks = (replace(self.shard, rank=rank) for rank in range(self.shard.size))
            parts = [one.of(spec.vocab, step, "tokens") for one in ranks]
            self.tokens_from = [0, *(part.indices(spec.vocab)[1] for part in parts)]
            vocabulary = parts[self.shard.rank]
            self.cuts[embedding] = self.cuts[head] = Cut(rows=vocabulary)
        layers = []
        for number, layer in enumerate(spec.layers):
            mlp = layer.mlp
            local = self._mlp(number, mlp) if isinstance(mlp, Mlp) else self._moe(number, mlp)
            layers.append(Layer(self._attention(number, layer.attention), local))
        self.spec = replace(spec, layers=tuple(layers), vocab=_size(vocabulary, spec.vocab))
        self.forms = {
            place: form.cut(self.cuts[place].columns) if place in self.cuts else form
            for place, form in self.forms.items()
            if self.has(place)
        }

    def has(self, place: Place) -> bool:
        """Whether any of it is this rank's: all but the experts of others."""
        number, _, expert = place
        if expert < 0:
            return True
        moe = self.spec.layers[number].mlp
        return isinstance(moe, Moe) and expert in moe.held

    def _attention(self, number: int, attention: Attention) -> Attention:
        """Whole groups of the heads that share a key head, or one key head for several ranks."""
        shard, dim, heads, kv_heads = self.shard, attention.head_dim, attention.heads, attention.kv_heads
        if shard.size == 1:
            return attention
        share = heads // kv_heads
        steps = {role: self._step((number, role, -1), role == "out") for role in ("q", "k", "v", "out")}
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
        self.cuts[number, "q", -1] = Cut(rows=queries)
        self.cuts[number, "k", -1] = self.cuts[number, "v", -1] = Cut(rows=others)
        self.cuts[number, "out", -1] = Cut(columns=queries)
        return replace(attention, heads=q.stop - q.start, kv_heads=kv.stop - kv.start)

    def _mlp(
        self, number: int, mlp: Mlp, prefix: str = "", expert: int = -1, shard: Shard | None = None
    ) -> Mlp:
        gate, up, down = ((number, f"{prefix}{role}", expert) for role in ("gate", "up", "down"))
        step = lcm(self._step(gate, 0), self._step(up, 0), self._step(down, 1))
        inner = self._inner(mlp.intermediate, step, shard)
        order = self.forms[down].columns if down in self.forms and step == 1 else ALL  # blocks stay together
        part = inner if isinstance(order, slice) else order[inner]
        if part is not ALL:
            self.cuts[gate] = self.cuts[up] = Cut(rows=part)
            self.cuts[down] = Cut(columns=part)
        return replace(mlp, intermediate=_size(inner, mlp.intermediate))

    def _moe(self, number: int, moe: Moe) -> Moe:
        """Every rank has its part of each expert, or some experts whole.

        Whom a row chooses, all ranks decide alike; so each knows which of its own are among them.
        """
        own, shard = moe, self.shard
        if shard.whole_experts and shard.size > 1:
            without = " Without --enable-expert-parallel each expert is cut."
            held = shard.of(moe.experts, 1, "experts", without)
            own, shard = replace(moe, part=range(held.start, held.stop)), WHOLE_MODEL
        local = moe.expert
        for expert in own.held:
            local = self._mlp(number, moe.expert, "expert_", expert, shard)
        shared = moe.shared and self._mlp(number, moe.shared, "shared_")
        return replace(own, intermediate=local.intermediate, shared=shared)

    def _inner(self, count: int, step: int, shard: Shard | None = None) -> slice:
        """Of rows and columns between two products, which stand together where that is possible."""
        shard = shard or self.shard
        return shard.of(count, _together(count, step, shard.size), "rows")

    def _step(self, place: Place, axis: int) -> int:
        """Rows (0) or columns (1) that share a scale and are not parted."""
        return self.forms[place].steps[axis] if place in self.forms else 1


def _together(count: int, step: int, size: int) -> int:
    """The steps in which so many rows are parted among so many ranks."""
    return lcm(next((one for one in _STEPS if -(-count // lcm(one, step)) >= size), 1), step)


def _size(part: slice, count: int) -> int:
    return len(range(*part.indices(count)))
