"""Whether a model fits, what takes how much of a device, and how long and how many its requests may be."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.fit.arithmetic import Arithmetic
from slipway.fit.devices import Device
from slipway.fit.needs import Needs, RankNeeds
from slipway.fit.short import Short, shortage


@dataclass(frozen=True, slots=True)
class RankEstimate:
    """Bytes that a rank takes of its device, or of the host's memory.

    weights      as they are held
    kv_cache     of all pages
    state        rotations, workspaces, records of requests
    slots        tokens and block tables of requests
    activations  of the largest step
    graphs       of CUDA graphs
    runtime      of the device's context, of an interpreter and its libraries
    kv_token     of the pages, for each token of a context that every layer still sees
    """

    weights: int
    kv_cache: int
    state: int
    slots: int
    activations: int
    graphs: int
    runtime: int
    kv_token: float

    @property
    def total(self) -> int:
        held = self.weights + self.kv_cache + self.state + self.slots
        return held + self.activations + self.graphs + self.runtime


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model takes of a kind of device, and what that leaves.

    ranks          of one engine
    devices        that there are
    kv_tokens      that the pages of one engine hold, of requests that every layer sees whole
    serves_len     the context that is served
    max_model_len  the largest `--max-model-len` that fits
    max_num_seqs   requests of the served length that are computed at the same time
    short          which part is short, where the model does not fit as it is asked for
    """

    needs: Needs
    device: Device
    ranks: tuple[RankEstimate, ...]
    devices: int
    kv_tokens: int
    serves_len: int
    max_model_len: int
    max_num_seqs: int
    short: Short | None

    @property
    def fits(self) -> bool:
        return self.short is None

    @property
    def total(self) -> int:
        """Of all devices; of the host where the processors compute."""
        beside = self.needs.frontend if self.needs.kind == "cpu" else 0
        return sum(rank.total for rank in self.ranks) * self.needs.engines + beside

    @property
    def at_rest(self) -> int:
        """Of the host's memory, before the first request: a CPU's pool and steps take it as they are used."""
        ahead = self.needs.touched_ahead
        unused = sum(rank.activations + rank.slots + max(0, rank.kv_cache - ahead) for rank in self.ranks)
        return self.total - unused * self.needs.engines


def estimate(needs: Needs, device: Device, devices: int | None = None) -> Estimate:
    """The estimate for devices of one kind, of which the engine takes as many as it has ranks.

    device   one of them; the host where `needs` are a CPU's
    devices  that there are; None: enough
    Raises Exit where no step takes the longest prompt.
    """
    needs = needs.on(device.memory)
    needs.tokens(needs.max_model_len)  # which a step must take, as at a start
    sums = Arithmetic(needs, device)
    longest = sums.longest()
    serves = min(needs.max_model_len, longest) or needs.max_model_len
    pages = sums.pages(serves)
    kv = needs.ranks[0].kv
    return Estimate(
        needs,
        device,
        tuple(_rank(sums, rank, serves, pages) for rank in needs.ranks),
        needs.processes if devices is None else devices,
        kv.tokens_in(pages),
        serves if longest else 0,
        longest,
        sums.most_requests(serves),
        shortage(sums, longest, devices),
    )


def _rank(sums: Arithmetic, rank: RankNeeds, length: int, pages: int) -> RankEstimate:
    kv, needs = rank.kv, sums.needs
    return RankEstimate(
        rank.weights,
        pages * kv.page_bytes,
        needs.held(rank, length),
        needs.slots(rank, length),
        needs.activations(rank, length),
        needs.graphs,
        rank.runtime,
        sum(kv.page_bytes / size for size in kv.block_sizes),
    )
