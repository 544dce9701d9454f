"""What adapters add on a device: to which products, from which bytes of a place, and for which rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from slipway.engine.messages import AdapterRef
from slipway.load.adapter import AdapterLimits
from slipway.load.torch_arrays import tensor, torch_type
from slipway.model.adapters import EMBEDDING, HEAD, Addition
from slipway.model.own_rows import Own
from slipway.model.roles import Place
from slipway.model.shard import Shard
from slipway.model.spec import DecoderSpec
from slipway.model.stage import Stage
from slipway.model.weights import MlpWeights, ModelWeights, MoeWeights
from slipway.schemes.fused import FusedLinear
from slipway.worker.device.expert_low_rank import AdaptedPairs, ExpertPlaces
from slipway.worker.device.own_places import OwnPlaces
from slipway_kernels.lora import (
    Pool,
    PoolShape,
    Rows,
    add_looked_up,
    add_lora,
    enter_own,
    own_logits,
    sort_rows,
    unsorted,
    workspace,
)

ReadParts = Callable[[AdapterRef], tuple[Mapping[Place, Addition], Own]]
"""What an adapter adds, by matrix, and what it has in place of the model's own. Raises LoadError where it
cannot be served."""


@dataclass(frozen=True, slots=True)
class SlotAdapters:
    """The adapters of a step.

    of_slot  [num_slots] int32, the place on the device of each slot's adapter; -1: it has none
    most     different ones, at most: at least 1
    experts  whether any of them adds to experts
    own      whether any of them has rows of tokens
    rotations  [num_slots] int32, as of `Own`; None where no adapter has another than the model's
    """

    of_slot: Tensor
    most: int
    experts: bool = False
    own: bool = False
    rotations: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Site:
    """A product, or the embedding, to which adapters add.

    matrices  of the model, with their numbers of outputs: slices of one pool, in this order
    at        its first byte in a place
    bias      [n] fp32 on the host: the product's own, which adapters may replace; None where it has none
    """

    matrices: Mapping[Place, int]
    shape: PoolShape
    at: int
    bias: Tensor | None


class LowRank:
    """Places on the device for the adapters of a step, and what they add to which product.

    A place has the factors for all layers in one run of bytes, with room for the largest rank: so one copy
    puts an adapter there.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        stage: Stage,
        weights: ModelWeights,
        limits: AdapterLimits,
        read: ReadParts,
        device: torch.device,
        shard: Shard,
        added_up: Callable[[Tensor], Tensor],
    ) -> None:
        """added_up: the sum of a tensor over the ranks that have the other shards.

        Raises torch.OutOfMemoryError where the device has no room for the places.
        """
        self.device = device
        self.added_up = added_up
        self.num_places = limits.in_step
        self._read = read
        linears = dict(_adaptable(spec, stage, weights))
        rank, dtype = limits.max_rank, torch_type(limits.dtype)
        shapes = [_shape(linear, matrices, limits, shard) for linear, matrices in linears.items()]
        shapes.append(PoolShape(rank, spec.vocab, (spec.hidden,), dtype, by_token=True))
        *starts, self.place_bytes = accumulate((shape.nbytes for shape in shapes), initial=0)
        biases = [
            linear.bias.float().cpu() if limits.bias and linear.bias is not None else None
            for linear in linears
        ]
        matrices = [*linears.values(), {EMBEDDING: spec.hidden}]
        self._sites = [_Site(*one) for one in zip(matrices, shapes, starts, [*biases, None], strict=True)]
        # Zeros are adapters of rank 0: padding may name a place that nobody has filled yet.
        self.memory = torch.zeros((self.num_places, self.place_bytes), dtype=torch.uint8, device=device)
        *pools, self.embedding = self._pools(self.memory)
        self.products = dict(zip(linears, pools, strict=True))
        self._widest = max(pools, key=lambda pool: pool.a.shape[1])
        self.experts = ExpertPlaces(stage.layers, weights, limits, self.num_places, device)
        own = limits.own
        self.factors = own.factors
        self.own = OwnPlaces(spec.vocab, own.room, spec.hidden, self.num_places, dtype, device)
        self._rows = 0
        self.h = torch.empty(0, device=device)
        """Workspace of all products: the largest step has it grow to what any step needs."""

    def read(self, adapter: AdapterRef, memory: Tensor) -> tuple[Mapping[Place, Addition], Own]:
        """Make memory [place_bytes] on the host what a place is to have, but for experts and rows of tokens.

        Raises LoadError where the adapter cannot be served; some of the memory may have changed then.
        """
        found, instead = self._read(adapter)
        for site, pool in zip(self._sites, self._pools(memory[None]), strict=True):
            own = [found.get(place, Addition()) for place in site.matrices]
            pool.put(0, [_factors(one, by_token=site.shape.by_token) for one in own], _bias(site, own))
        return found, instead

    def rows(self, slots: Tensor, adapters: SlotAdapters) -> RowAdapters:
        """Sort rows of these slots [rows] int32 by their adapters; -1: padding."""
        if len(slots) > self._rows:
            self._rows, self.h = len(slots), workspace(self._widest, len(slots))
        room = unsorted(len(slots), adapters.most, slots.device)
        rows = sort_rows(adapters.of_slot, self.num_places, room, slots)
        of_rows = None
        if adapters.experts:
            of_rows = torch.where(slots < 0, -1, adapters.of_slot[slots.clamp(min=0)])
        return RowAdapters(self, adapters, slots, rows, of_rows)

    def _pools(self, memory: Tensor) -> list[Pool]:
        """Those of all sites, in memory [places, place_bytes]."""
        return [site.shape.over(memory, site.at) for site in self._sites]


@dataclass(frozen=True, slots=True)
class RowAdapters:
    """The adapters of some rows of a step: what `product` adds to what it computes for them.

    slots    [rows] int32, whose they are; -1: padding
    of_rows  [rows] int32, the place of each one's; None where none adds to experts
    """

    low_rank: LowRank
    step: SlotAdapters
    slots: Tensor
    rows: Rows
    of_rows: Tensor | None

    def __contains__(self, linear: object) -> bool:
        """Whether they may add to this product, for which rows must be plain."""
        return linear in self.low_rank.products

    def add(self, linear: FusedLinear, x: Tensor, out: Tensor) -> None:
        """To out [rows, n], the product with x [rows, k]; of the head, whatever a rank has of it, to all."""
        low_rank = self.low_rank
        pool = low_rank.products[linear]
        added_up = low_rank.added_up if pool.shape.is_part else None
        add_lora(x, pool, self.rows, low_rank.h, out, added_up=added_up)

    def add_embedding(self, ids: Tensor, out: Tensor) -> None:
        """To out [rows, hidden], the embeddings of these tokens [rows] of the model."""
        add_looked_up(ids, self.low_rank.embedding, self.rows, self.low_rank.h, out)

    def enter_own(self, ids: Tensor, out: Tensor) -> None:
        """Rows of out [rows, hidden] of tokens that an adapter has for itself become what it has for them."""
        enter_own(ids, self.slots, self.step.of_slot, self.low_rank.own.tables, out)

    def with_own(self, hidden: Tensor, logits: Tensor, cap: float) -> Tensor:
        """logits [rows, vocab] of hidden [rows, hidden], with those of tokens that adapters have for
        themselves: [rows, vocab and what may be added], -inf for what a row's adapter does not draw."""
        own, (rows, vocab) = self.low_rank.own, logits.shape
        wide = logits.new_empty(rows, own.columns)
        wide[:, :vocab].copy_(logits)
        wide[:, vocab:].fill_(-torch.inf)
        return own_logits(hidden, own.tables, self.rows, wide, cap=cap)

    def pairs(self, weights: MoeWeights, ids: Tensor) -> AdaptedPairs | None:
        """What adds to the experts ids [rows, top_k] of these rows; None where nothing does."""
        if self.of_rows is None:
            return None
        return AdaptedPairs(self.low_rank.experts, weights, ids, self.of_rows, self.step.most)

    def of(self, slots: Tensor) -> RowAdapters:
        """The same of other rows of the step, or of some of them: those of these slots [rows]."""
        return self.low_rank.rows(slots, self.step)


def _adaptable(
    spec: DecoderSpec, stage: Stage, weights: ModelWeights
) -> Iterator[tuple[FusedLinear, dict[Place, int]]]:
    """The products to which adapters may add, with their matrices and these matrices' outputs."""
    for number, layer in zip(stage.layers, weights.layers, strict=True):
        mlp = layer.mlp if isinstance(layer.mlp, MlpWeights) else layer.mlp.shared
        for linear in (layer.qkv, layer.out, *((mlp.gate_up, mlp.down) if mlp else ())):
            yield linear, {(number, role, -1): len(one.rows) for role, one in linear.segments.items()}
    if stage.is_last:
        yield weights.head, {HEAD: spec.vocab}


def _shape(
    linear: FusedLinear, matrices: Mapping[Place, int], limits: AdapterLimits, shard: Shard
) -> PoolShape:
    """What adapters may add to a rank's part of a product of these matrices."""
    role, columns = next(iter(matrices))[1], tuple(matrices.values())
    turn, turns = (shard.rank, shard.size) if shard.deals(role) else (0, 1)
    return PoolShape(
        limits.max_rank,
        linear.k,
        columns,
        torch_type(limits.dtype),
        limits.bias and shard.adds_bias(role),
        turn=turn,
        turns=turns,
        run=range(linear.n)[shard.run(linear.n)] if shard.adds_parts(role) else None,
    )


def _factors(addition: Addition, *, by_token: bool) -> tuple[Tensor, Tensor] | None:
    """A [r, k] and B [n, r], or None where there are none."""
    if addition.a is None or addition.b is None:
        return None
    a = tensor(addition.a)
    return a.T if by_token else a, tensor(addition.b)


def _bias(site: _Site, own: Sequence[Addition]) -> Tensor | None:
    """What is added to the rows of an adapter [n] fp32; None where adapters have no biases."""
    if not site.shape.bias:
        return None
    bias, end = torch.zeros(sum(site.shape.slices)), 0
    for columns, one in zip(site.shape.slices, own, strict=True):
        part = slice(end, end := end + columns)
        if one.bias is not None:
            bias[part] += tensor(one.bias)
        if one.new_bias is not None and site.bias is not None:
            bias[part] += tensor(one.new_bias) - site.bias[part]
    return bias
