"""The adapters of a lowered model: read in a thread of their own, put in place between steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm
from pathlib import Path

import numpy as np

from slipway.engine.messages import AdapterRef
from slipway.engine.plan import NO_PLACE
from slipway.load.adapter import AdapterLimits, read_adapter
from slipway.load.arrays import BF16, FP32, DType, Floats, Ints
from slipway.load.cut import WHOLE, Cut
from slipway.model.adapters import EMBEDDING, HEAD, PRODUCTS, Addition, additions
from slipway.model.own_rows import Own, ReadRows, own_of, stretched, with_additions
from slipway.model.registry import Family
from slipway.model.roles import Place
from slipway.model.rope import cos_sin
from slipway.model.shard import WHOLE_MODEL, Shard
from slipway.model.spec import DecoderSpec, Rope
from slipway.model.weights import MoeWeights
from slipway.schemes.fused import FusedLinear
from slipway_kernels.cpu import (
    Adaptable,
    Buffer,
    Extension,
    LowRank,
    OwnRows,
    Piece,
    Program,
    Shared,
    together,
)


@dataclass(frozen=True, slots=True)
class Packed:
    """An adapter as the program computes with it."""

    added: Mapping[int, LowRank] = field(default_factory=dict)
    """By the index of the site."""
    extension: Extension | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """An operation to which adapters add: `rows` of its output by the matrix that makes them.

    bias  [n], of the operation, or None
    """

    to: Adaptable
    rows: Mapping[Place, Ints]
    bias: Floats | None


@dataclass
class AdapterPlaces:
    """Where a program has room for adapters, and what is there.

    spec   the whole model's
    cuts   of the model's matrices
    shard  whose they are
    """

    program: Program
    limits: AdapterLimits
    spec: DecoderSpec
    family: Family
    cuts: Mapping[Place, Cut]
    shard: Shard = WHOLE_MODEL
    _sites: list[Site] = field(default_factory=list)
    _ready: dict[int, tuple[int, Packed]] = field(default_factory=dict)
    """By place, the adapter, by its number, that was read for it and is not there yet."""
    _placed: dict[int, frozenset[int]] = field(default_factory=dict)
    """By place, the sites to which what is there adds."""
    _angles: dict[Rope, list[Floats]] = field(default_factory=dict)
    _head_bias: Floats | None = None

    def __post_init__(self) -> None:
        if self.limits.own.any:
            self.program.extend(self.limits.places, self.limits.own.max_added)
        if self.shard.cuts_adapters:
            self.program.share_adapters(max(self._dealt(3), self._width(1)))

    def add(self, x: Buffer, linear: FusedLinear, column: int, end: int, layer: int) -> None:
        """Have adapters add to the product that was added last: outputs `column` to `end` of a `linear`."""
        rows: dict[Place, Ints] = {}
        for role, segment in linear.segments.items():
            own = segment.rows[(segment.rows >= column) & (segment.rows < end)] - column
            if len(own) and role in PRODUCTS:
                rows[layer, role, -1] = own
        bias = None if linear.bias is None else linear.bias[column:end]
        if rows:
            self._add(x, rows, end - column, linear.k, bias)

    def add_experts(self, x: Buffer, moe: MoeWeights, layer: int) -> None:
        """Have adapters add to the experts that were added last."""
        experts, width = moe.experts, self._width(2)
        inner, hidden = experts[0].spec.intermediate, experts[0].gate_up.k
        to = self.program.adapt_experts(self.limits.places, width, x, hidden, inner, len(experts))
        for expert, weights, products in zip(moe.spec.held, experts, to, strict=True):
            for linear, product in zip((weights.gate_up, weights.down), products, strict=True):
                rows = {(layer, role, expert): one.rows for role, one in linear.segments.items()}
                self._sites.append(Site(product, rows, None))

    def add_head(self, x: Buffer, head: FusedLinear) -> None:
        self._head_bias = head.bias
        self._add(x, {HEAD: np.arange(head.n, dtype=np.int32)}, head.n, x.width, head.bias)

    def add_embedding(self, out: Buffer) -> None:
        self._add(out, {EMBEDDING: np.arange(out.width, dtype=np.int32)}, out.width, 0, None)

    def _add(self, x: Buffer, rows: Mapping[Place, Ints], n: int, k: int, bias: Floats | None) -> None:
        role, count = next(iter(rows))[1], len(rows)
        shared: tuple[Shared, int] = "whole", 0
        if self.shard.deals(role):
            shared = "dealt", self._dealt(count)
        elif self.shard.adds_parts(role):
            shared = "added up", self._width(count)
        to = self.program.adapt(self.limits.places, self._width(count), x, n, k, *shared)
        self._sites.append(Site(to, rows, bias))

    def _width(self, matrices: int) -> int:
        """The most columns of A · x of so many matrices."""
        return -(-matrices * self._columns // 16) * 16

    def _dealt(self, matrices: int) -> int:
        """Of these, the most that one of the ranks makes to whom they are dealt."""
        return -(-matrices * self._columns // self.shard.size // 16) * 16

    @property
    def _columns(self) -> int:
        """Of A · x of one matrix, the most: pairs, and as many for each rank where ranks share them."""
        each = lcm(2, self.shard.size if self.shard.cuts_adapters else 1)
        return -(-self.limits.max_rank // each) * each

    def read(self, adapter: AdapterRef, place: int) -> int:
        """Make an adapter ready for a place, in any thread; for NO_PLACE it is not kept. The tokens that it
        adds to the vocabulary.

        Raises LoadError where it cannot be served.
        """
        packed = self._packed(adapter)
        if place != NO_PLACE:
            self._ready[place] = adapter.number, packed
        return 0 if packed.extension is None else packed.extension.added

    def put(self, place: int, adapter: AdapterRef | None) -> None:
        """Between steps: the place has this adapter from now on; it is read now unless it has been before."""
        number, packed = self._ready.pop(place, (0, Packed()))
        if adapter is None:
            packed = Packed()
        elif adapter.number != number:
            packed = self._packed(adapter)
        for index in self._placed.get(place, frozenset()) | packed.added.keys():
            self.program.set_adapter(self._sites[index].to, place, packed.added.get(index))
        self._placed[place] = frozenset(packed.added)
        if self.limits.own.any:
            self.program.set_extension(place, packed.extension)

    def rotations(self, rope: Rope) -> list[Floats]:
        """Tables of the angles that adapters may have instead of a layer's."""
        if rope not in self._angles:
            length = self.program.slots.max_len
            tables = [cos_sin(stretched(rope, factor), length) for factor in self.limits.own.factors]
            self._angles[rope] = tables
        return self._angles[rope]

    def _packed(self, adapter: AdapterRef) -> Packed:
        found, own = self._read(adapter)
        added = {
            index: low
            for index, site in enumerate(self._sites)
            if (low := _low_rank(site, found, self.program.dtype, self.shard)) is not None
        }
        together(list(added.values()))
        return Packed(added, self._extension(own) if own else None)

    def _read(self, adapter: AdapterRef) -> tuple[dict[Place, Addition], Own]:
        output = self.program.output
        table = self.program.embedding or (output if self.spec.tied_embedding else None)
        return read_parts(
            adapter,
            self.limits,
            self.spec,
            self.family,
            self.cuts,
            BF16 if self.program.dtype == "bf16" else FP32,
            None if table is None else table.rows,
            None if output is None else output.rows,
            self._head_bias,
            self.shard,
        )

    def _extension(self, own: Own) -> Extension:
        embedding, head = (
            None if rows is None else OwnRows(rows.tokens, rows.numbers, rows.bias)
            for rows in (own.embedding, own.head)
        )
        first = self.shard.rank == 0 and self.program.embedding is not None  # not of a later stage
        vocab, dtype = self.spec.vocab, self.program.dtype
        return Extension(vocab, own.added, dtype, embedding, head, own.rotation, first=first)


def read_parts(
    adapter: AdapterRef,
    limits: AdapterLimits,
    spec: DecoderSpec,
    family: Family,
    cuts: Mapping[Place, Cut],
    dtype: DType,
    embedding: ReadRows | None = None,
    head: ReadRows | None = None,
    head_bias: Floats | None = None,
    shard: Shard = WHOLE_MODEL,
) -> tuple[dict[Place, Addition], Own]:
    """What the files of an adapter add to a model's matrices, and what it has in place of the model's own.

    spec       the whole model's
    cuts       of the matrices; all others are as of `own_of`
    head_bias  the model's, or None
    shard      whose the cuts are, the rows and the bias
    Raises LoadError where it cannot be served.
    """
    read = read_adapter(adapter.name, Path(adapter.folder).expanduser(), limits)
    vocabulary = cuts.get(EMBEDDING, WHOLE).rows
    assert isinstance(vocabulary, slice), "tokens stand in order"
    tokens = range(*vocabulary.indices(spec.vocab))
    own = own_of(read, spec, family, limits.own, dtype, embedding, head, tokens)
    found = additions(read, spec, family, cuts, shard, own.added)
    own, found = with_additions(own, found, spec, head_bias, tokens)
    return found, own


def _low_rank(site: Site, found: Mapping[Place, Addition], dtype: str, shard: Shard) -> LowRank | None:
    """What an adapter adds to one operation; None where that is nothing."""
    own = [(found[place], rows) for place, rows in site.rows.items() if place in found]
    if not own:
        return None
    bias = np.zeros(site.to.n, np.float32)
    for one, rows in own:
        if one.bias is not None:
            bias[rows] += one.bias
        if one.new_bias is not None and site.bias is not None:
            bias[rows] += one.new_bias - site.bias[rows]
    pieces = [
        Piece(one.a, one.b, rows[one.outputs]) for one, rows in own if one.a is not None and one.b is not None
    ]
    return LowRank(
        site.to.n,
        dtype,
        pieces,
        bias if bias.any() else None,
        embedding=EMBEDDING in site.rows,
        dealt=(shard.rank, shard.size) if shard.deals(next(iter(site.rows))[1]) else (0, 1),
    )
