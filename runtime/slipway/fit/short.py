"""Which part of a memory is short, with the arithmetic in a sentence, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipway.fit.arithmetic import Arithmetic
from slipway.fit.needs import RankNeeds
from slipway.worker.cache_size import CPU_MORE, DEVICE_MORE, GIB

Part = Literal["devices", "weights", "activations", "kv_cache", "memory"]


@dataclass(frozen=True, slots=True)
class Short:
    """The part that is short, a sentence with the sum, and what to do."""

    part: Part
    message: str
    hint: str


def shortage(sums: Arithmetic, longest: int, devices: int | None) -> Short | None:
    """What prevents that the model is served as it is asked for; None where nothing does.

    longest  the largest `--max-model-len` that fits
    devices  that there are; None: enough
    """
    needs = sums.needs
    if devices is not None and needs.kind == "cuda" and devices < needs.processes:
        return _too_few(sums, devices)
    if longest and (needs.asked_len is None or sums.holds(needs.max_model_len)):
        return None
    length = longest or needs.max_model_len
    rank = max(needs.ranks, key=lambda one: one.weights)
    pages = sums.pages(length)
    if needs.kind == "cuda" and not sums.budget(rank, length).kv_cache:
        return _no_room(sums, rank, length)
    if not sums.has_room(length, pages):
        return _overcommitted(sums, length, pages)
    return _cache(sums, rank, longest)


def _too_few(sums: Arithmetic, devices: int) -> Short:
    needs = sums.needs
    ranks = f"{len(needs.ranks)} ranks"
    takers = ranks if needs.engines == 1 else f"{needs.engines} engines of {ranks}"
    return Short(
        "devices",
        f"{takers} take {needs.processes} devices, of which there are {devices}.",
        "Lower --tensor-parallel-size, --pipeline-parallel-size or --data-parallel-size, or take more.",
    )


def _no_room(sums: Arithmetic, rank: RankNeeds, length: int) -> Short:
    """Nothing is left for pages of a device."""
    needs = sums.needs
    room, of_what = _share(sums, rank)
    beside = needs.held(rank, length) + needs.slots(rank, length)
    step, graphs = needs.activations(rank, length), needs.graphs
    parts = [f"Weights of {gib(rank.weights)}", f"{gib(beside)} of state", f"{gib(step)} of activations"]
    parts += [f"{gib(graphs)} of CUDA graphs"] if graphs else []
    message = f"{', '.join(parts[:-1])} and {parts[-1]} leave nothing of {of_what}."
    if rank.weights < min(beside + step + graphs, room):
        eager = "Leave CUDA graphs out with --enforce-eager, or lower" if graphs > beside + step else "Lower"
        fewer = "--max-num-seqs, --max-num-batched-tokens or --max-model-len."
        return Short("activations", message, f"{eager} {fewer}")
    spread = needs.tensor_parallel_size * 2
    return Short(
        "weights",
        message,
        f"Take a larger device, spread the model over more (--tensor-parallel-size {spread}), or quantize it "
        "(--quantization int4, or a checkpoint that is quantized).",
    )


def _share(sums: Arithmetic, rank: RankNeeds) -> tuple[float, str]:
    """Bytes of a device that a server may use, and what they are."""
    whole, share = sums.device.memory, sums.needs.gpu_memory_utilization
    if whole * share < whole - rank.runtime:
        return whole * share, f"{share:.0%} of {gib(whole)}"
    return whole - rank.runtime, f"{gib(whole)}, of which CUDA itself takes {gib(rank.runtime)}"


def _overcommitted(sums: Arithmetic, length: int, pages: int) -> Short:
    """A host's memory, or a pool that was asked for, is more than there is."""
    needs, device = sums.needs, sums.device
    ranks = needs.ranks if needs.kind == "cpu" else needs.ranks[:1]
    copies = needs.engines if needs.kind == "cpu" else 1
    taken = copies * sum(sums.taken(rank, length, pages) for rank in ranks)
    taken += needs.frontend if needs.kind == "cpu" else 0
    weights = copies * sum(rank.weights for rank in ranks)
    pool = copies * sum(pages * rank.kv.page_bytes for rank in ranks)
    part: Part = (
        "weights" if weights > device.memory else "kv_cache" if pool > device.memory / 4 else "memory"
    )
    return Short(
        part,
        f"Weights of {gib(weights)}, {gib(pool)} of KV cache and {gib(taken - weights - pool)} beside them "
        f"are {gib(taken)}, and {device.name} has {gib(device.memory)}.",
        "Give it more memory, take a smaller or quantized model, or lower --kv-cache-memory-bytes, "
        f"{CPU_MORE if needs.kind == 'cpu' else '--max-num-seqs'} or --max-model-len.",
    )


def _cache(sums: Arithmetic, rank: RankNeeds, longest: int) -> Short:
    """Pages for one request of the wanted length are more than there is room for."""
    needs, kv = sums.needs, rank.kv
    length = needs.max_model_len
    wanted, left = kv.pages_for(length) * kv.page_bytes, sums.pages(length) * kv.page_bytes
    more = DEVICE_MORE if needs.kind == "cuda" else f"--kv-cache-memory-bytes or {CPU_MORE}"
    fewer = f"Set --max-model-len {longest} or less" if longest else "Take a larger device"
    return Short(
        "kv_cache",
        f"One request of --max-model-len {length} takes {gib(wanted)} of KV cache, and {gib(left)} are left "
        "for it.",
        f"{fewer}, {more} to more, or --kv-cache-dtype fp8, which halves what a token takes.",
    )


def gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
