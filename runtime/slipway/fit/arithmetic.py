"""How much of a device each part takes, and which lengths and numbers of requests that leaves room for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipway.fit.devices import Device
from slipway.fit.needs import Needs, RankNeeds
from slipway.model.kv import KVLayout
from slipway.worker.cache_size import CPU_MORE, DEVICE_MORE, CacheMemory, host_share, wanted_pages
from slipway.worker.device.budget import Budget

MOST_REQUESTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Planned:
    """A rank's pages, and the context that they are for."""

    kv: KVLayout
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What an engine that needs so much does with a device's memory, or with a host's."""

    needs: Needs
    device: Device

    def budget(self, rank: RankNeeds, length: int) -> Budget:
        """As a worker on a device divides it before its slots have a length."""
        needs = self.needs
        return Budget(
            self.device.memory,
            needs.gpu_memory_utilization,
            rank.runtime,
            rank.weights + needs.held(rank, length),
            needs.activations(rank, length),
            needs.graphs,
        )

    def memory(self, rank: RankNeeds, length: int) -> CacheMemory:
        """What a worker finds for its pages."""
        needs, page = self.needs, rank.kv.page_bytes
        if needs.kind == "cuda":
            position = rank.slot_bytes * needs.max_num_seqs
            return CacheMemory(self.budget(rank, length).kv_cache, page, DEVICE_MORE, position)
        share = host_share(self.device.memory, needs.processes * rank.weights, needs.processes)
        return CacheMemory(share, page, CPU_MORE)

    def pages(self, length: int) -> int:
        """Of the pool, as an engine takes the least of its ranks."""
        ranks = self.needs.ranks
        return min(
            wanted_pages(self.needs, Planned(rank.kv, length), self.memory(rank, length)) for rank in ranks
        )

    def taken(self, rank: RankNeeds, length: int, pages: int) -> int:
        """All that a rank takes of its device, or of the host."""
        needs = self.needs
        beside = needs.held(rank, length) + needs.slots(rank, length) + needs.graphs + rank.runtime
        return rank.weights + beside + needs.activations(rank, length) + pages * rank.kv.page_bytes

    def has_room(self, length: int, pages: int) -> bool:
        """Whether memory suffices for that, pages that were asked for among it."""
        taken = [self.taken(rank, length, pages) for rank in self.needs.ranks]
        if self.needs.kind == "cuda":
            return max(taken) <= self.device.memory
        return sum(taken) * self.needs.engines + self.needs.frontend <= self.device.memory

    def holds(self, length: int) -> bool:
        """Whether a request of this length can be served."""
        kv, pages = self.needs.ranks[0].kv, self.pages(length)
        return pages >= kv.pages_for(length) and self.has_room(length, pages)

    def longest(self) -> int:
        """The largest `--max-model-len` that fits; 0 where none does."""
        return largest(self.holds, self.needs.longest)

    def most_requests(self, length: int) -> int:
        """The largest `--max-num-seqs` whose requests of this length are all computed at the same time."""

        def holds(count: int) -> bool:
            more = replace(self, needs=replace(self.needs, max_num_seqs=count))
            chunk = more.needs.tokens(length)
            each = sum(group.most_pages(length, chunk) for group in more.needs.ranks[0].kv.groups)
            pages = more.pages(length)
            return pages >= count * each and more.holds(length)

        return largest(holds, MOST_REQUESTS)


def largest(holds: Callable[[int], bool], bound: int) -> int:
    """The largest count up to `bound` for which that holds, as for all below it; 0: for none."""
    least, most = 0, bound + 1
    while most - least > 1:
        middle = (least + most) // 2
        if holds(middle):
            least = middle
        else:
            most = middle
    return least
