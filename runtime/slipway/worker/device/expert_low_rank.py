"""What adapters add to experts on a device: in memory of its own, which no adapter has that adds to none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.adapter import AdapterLimits
from slipway.load.torch_arrays import tensor, torch_type
from slipway.model.adapters import EXPERTS, Addition
from slipway.model.roles import Place
from slipway.model.weights import ModelWeights, MoeWeights
from slipway_kernels.lora import Pool, PoolShape, Rows, add_lora, sort_rows, unsorted, workspace

MOST_ROWS = 2048
"""Of a pass with adapters of experts: gate and up of all pairs lie in memory that no profile has measured."""


@dataclass(frozen=True, slots=True)
class _Site:
    """A product of each of a layer's experts: `at` is its first byte in what an expert has of a place, and
    `held` the experts' numbers in the model."""

    layer: int
    roles: tuple[str, ...]
    shape: PoolShape
    at: int
    held: range


class ExpertPlaces:
    """Factors of experts, place by place and there expert by expert, of all layers in one run of bytes.

    The memory is there from the first adapter on that adds to experts: room for all factors of all experts
    is as much as the smallest models have, and most adapters add to none.
    """

    memory: Tensor | None = None
    """[places, place_bytes], once it is wanted."""

    def __init__(
        self,
        numbers: range,
        weights: ModelWeights,
        limits: AdapterLimits,
        num_places: int,
        device: torch.device,
    ) -> None:
        """numbers: of the layers in the model"""
        self._num_places = num_places
        self._device = device
        layers = {
            number: layer.mlp
            for number, layer in zip(numbers, weights.layers, strict=True)
            if isinstance(layer.mlp, MoeWeights)
        }
        self._layers = {mlp.router: number for number, mlp in layers.items()}
        self.count = max((len(mlp.experts) for mlp in layers.values()), default=0)
        self._sites: list[_Site] = []
        self._expert_bytes = 0
        for number, mlp in layers.items():
            first = mlp.experts[0]
            for roles, linear in zip(EXPERTS.values(), (first.gate_up, first.down), strict=True):
                slices = tuple(len(linear.segments[role].rows) for role in roles)
                shape = PoolShape(limits.max_rank, linear.k, slices, torch_type(limits.dtype), limits.bias)
                self._sites.append(_Site(number, roles, shape, self._expert_bytes, mlp.spec.held))
                self._expert_bytes += shape.nbytes
        self._pools: list[Pool] = []

    @property
    def place_bytes(self) -> int:
        return self.count * self._expert_bytes

    def allocate(self) -> None:
        """Have the memory. Raises torch.OutOfMemoryError."""
        if self.memory is None:
            # Zeros are adapters of rank 0.
            shape = self._num_places, self.place_bytes
            memory = torch.zeros(shape, dtype=torch.uint8, device=self._device)
            self._pools = self._over(memory)
            self.memory = memory

    def sleep(self) -> None:
        if self.memory is not None:
            self.memory.untyped_storage().resize_(0)

    def wake(self) -> None:
        if self.memory is not None:
            self.memory.untyped_storage().resize_(self.memory.nbytes)
            self.memory.zero_()

    @staticmethod
    def wanted(found: Mapping[Place, Addition]) -> bool:
        """Whether an adapter adds to any expert."""
        return any(expert >= 0 for _, _, expert in found)

    def fill(self, found: Mapping[Place, Addition], memory: Tensor) -> None:
        """Make memory [place_bytes] on the host what a place is to have."""
        for site, pool in zip(self._sites, self._over(memory[None]), strict=True):
            for place, expert in enumerate(site.held):
                own = [found.get((site.layer, role, expert), Addition()) for role in site.roles]
                factors = [
                    None if one.a is None or one.b is None else (tensor(one.a), tensor(one.b)) for one in own
                ]
                pool.put(place, factors, _bias(site.shape, own))

    def of(self, weights: MoeWeights) -> tuple[Pool, Pool]:
        """Gate and up, and down: of all experts in all places."""
        layer = self._layers[weights.router]
        gate_up, down = (
            pool for site, pool in zip(self._sites, self._pools, strict=True) if site.layer == layer
        )
        return gate_up, down

    def _over(self, memory: Tensor) -> list[Pool]:
        by_expert = memory.view(len(memory) * self.count, self._expert_bytes)
        return [site.shape.over(by_expert, site.at) for site in self._sites]


class AdaptedPairs:
    """The pairs of a pass over a layer's experts, sorted by adapter and expert.

    ids      [rows, top_k]  the expert of each pair; -1: padding
    of_rows  [rows]  the place of each row's adapter; -1: it has none
    """

    def __init__(
        self, places: ExpertPlaces, weights: MoeWeights, ids: Tensor, of_rows: Tensor, most: int
    ) -> None:
        self._gate_up, self._down = places.of(weights)
        rows, self._share = ids.shape
        first = of_rows[:, None] * places.count
        keys = torch.where(first < 0, -1, first + ids).flatten()
        groups = len(self._gate_up.ranks)
        room = unsorted(rows * self._share, most * places.count, ids.device)
        self._rows: Rows = sort_rows(keys.int(), groups, room)

    def add_gate_up(self, x: Tensor, out: Tensor) -> None:
        """To out [pairs, 2 · intermediate], of the rows x [rows, hidden]."""
        h = workspace(self._gate_up, len(out))
        add_lora(x, self._gate_up, self._rows, h, out, share=self._share)

    def add_down(self, x: Tensor, out: Tensor) -> None:
        """To out [pairs, hidden], of x [pairs, intermediate]."""
        add_lora(x, self._down, self._rows, workspace(self._down, len(out)), out)


def _bias(shape: PoolShape, own: Sequence[Addition]) -> Tensor | None:
    if not shape.bias:
        return None
    parts = [
        torch.zeros(columns) if one.bias is None else tensor(one.bias)
        for columns, one in zip(shape.slices, own, strict=True)
    ]
    return torch.cat(parts)
