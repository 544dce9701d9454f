"""How many pages the KV cache has, and the context length that they allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.engine.config import EngineConfig
from slipway.exits import KV_CACHE_TOO_SMALL, Exit

if TYPE_CHECKING:
    from slipway.worker.plan import ModelPlan


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Pages of the pool, and the context length that they allow."""

    num_pages: int
    max_model_len: int
    warning: str = ""


def num_host_pages(config: EngineConfig, plan: ModelPlan) -> int:
    """Pages in host memory for preempted requests; never more than all requests can use."""
    if config.device != "cuda":
        return 0
    kv = plan.kv
    return min(kv.pages_for(plan.max_model_len) * config.max_num_seqs, config.swap_bytes // kv.page_bytes)


def cache_size(
    config: EngineConfig, plan: ModelPlan, room: int, more: str, position_bytes: float = 0.0
) -> CacheSize:
    """How many pages, and what they make of `--max-model-len`.

    room            bytes that the pool may take where no size was asked for; no more than requests can use
    more            what gives it more, for messages
    position_bytes  of room, what each position of the longest context takes beside pages
    A length that was not asked for is reduced to what fits; one that was asked for and does not fit is an
    error.
    """
    kv, length = plan.kv, plan.max_model_len
    one = kv.pages_for(length)
    if config.num_blocks is not None:
        pages = kv.pages_for(config.num_blocks * config.block_size)
    elif config.kv_cache_bytes is not None:
        pages = config.kv_cache_bytes // kv.page_bytes
    else:
        pages = min(one * config.max_num_seqs, int(room - length * position_bytes) // kv.page_bytes)
        if pages < one:  # a shorter context takes less
            step = max(kv.block_sizes)  # what every group has whole pages of
            each = kv.pages_for(step)
            pages = min(one, int(room // (each * kv.page_bytes + step * position_bytes)) * each)
    if pages >= one:
        return CacheSize(pages, length)
    fits = kv.tokens_in(pages)
    if config.max_model_len is not None or fits < 1:
        gib = pages * kv.page_bytes / (1 << 30)
        message = (
            f"the KV cache of {gib:.2f} GiB holds {fits} tokens, "
            f"and one request of --max-model-len {length} needs {one * kv.page_bytes / (1 << 30):.2f} GiB"
        )
        hint = (
            f"Set --max-model-len {fits} or less, {more} to more, "
            f"or --num-gpu-blocks-override {-(-length // config.block_size)} or more."
        )
        raise Exit(KV_CACHE_TOO_SMALL, message, hint, "max_model_len")
    warning = (
        f"The model's length of {length} tokens does not fit the KV cache: serving {fits}. "
        f"--kv-cache-memory-bytes or {more} gives it more."
    )
    return CacheSize(pages, fits, warning)
