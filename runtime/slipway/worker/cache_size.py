"""How large a step and the KV cache are, and the context length that the pages allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slipway.exits import BAD_ARGUMENTS, KV_CACHE_TOO_SMALL, Exit
from slipway.model.kv import KVLayout

if TYPE_CHECKING:
    from slipway.engine.config import EngineConfig
    from slipway.worker.plan import ModelPlan

GIB = 1 << 30
CPU_MORE = "VLLM_CPU_KVCACHE_SPACE"
DEVICE_MORE = "--gpu-memory-utilization"
"""What gives the KV cache more memory, by device."""


class Asked(Protocol):
    """What sizes the pool and the steps, as `EngineConfig` has it."""

    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int | None: ...
    @property
    def enable_chunked_prefill(self) -> bool: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int | None: ...
    @property
    def kv_cache_bytes(self) -> int | None: ...


class Planned(Protocol):
    """A model's pages, and the context that they are for, as `ModelPlan` has them."""

    @property
    def kv(self) -> KVLayout: ...
    @property
    def max_model_len(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """The memory that a worker has for its KV cache, and what takes how much of it, in bytes.

    num_bytes       for pages, and for slots where their length is still open
    page_bytes      of a page
    more            what gives it more, for messages
    position_bytes  of each position of the longest context, in all slots together
    """

    num_bytes: int
    page_bytes: int
    more: str
    position_bytes: float = 0.0

    def num_pages(self, kv: KVLayout, length: int) -> int:
        """How many pages fit beside slots for contexts of this length, or of the length that they allow."""
        pages = int(self.num_bytes - length * self.position_bytes) // self.page_bytes
        if pages >= kv.pages_for(length):
            return pages
        step = max(kv.block_sizes)  # what every group has whole pages of
        each = kv.pages_for(step)
        return int(self.num_bytes // (each * self.page_bytes + step * self.position_bytes)) * each


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Pages of the pool, and the context length that they allow."""

    num_pages: int
    max_model_len: int
    warning: str = ""


def token_budget(config: Asked, max_model_len: int, default: int) -> int:
    """Most tokens of a step: what was asked for, else `default`, or more without chunks.

    Then it takes the longest prompt beside all others. Raises Exit where what was asked for does not take the
    longest prompt alone.
    """
    asked = config.max_num_batched_tokens
    if config.enable_chunked_prefill:
        return asked or default
    if asked is None:
        return max(default, max_model_len + config.max_num_seqs - 1)
    if asked < max_model_len:
        message = (
            f"--max-num-batched-tokens {asked} is smaller than the {max_model_len} tokens that requests may "
            f"have, with chunked prefill off: a prompt longer than {asked} tokens could never run"
        )
        hint = (
            f"Set it to {max_model_len} or more or leave it out, set --max-model-len {asked} or less, "
            "or drop --no-enable-chunked-prefill."
        )
        raise Exit(BAD_ARGUMENTS, message, hint, "max_num_batched_tokens")
    return asked


def host_share(whole: int, weights: int, parts: int) -> int:
    """Bytes for the pool of each part of a machine with so much memory: a quarter of what weights leave."""
    return max(0, whole - weights) // 4 // parts


def num_host_pages(config: EngineConfig, plan: ModelPlan) -> int:
    """Pages in host memory for preempted requests; never more than all requests can use.

    None where no request holds a page, or none draws tokens: a prompt that has started is not preempted.
    """
    if not plan.kv.groups or plan.pooler is not None:
        return 0
    most = plan.kv.pages_for(plan.max_model_len) * config.max_num_seqs
    return min(most, config.swap_bytes // plan.kv.page_bytes)


def wanted_pages(config: Asked, plan: Planned, memory: CacheMemory) -> int:
    """What was asked for, else what there is room for; never more than all requests can use."""
    if not plan.kv.groups:
        return 0
    if config.num_blocks is not None:
        return plan.kv.pages_for(config.num_blocks * config.block_size)
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes // plan.kv.page_bytes
    length = plan.max_model_len
    return min(plan.kv.pages_for(length) * config.max_num_seqs, memory.num_pages(plan.kv, length))


def cache_size(config: EngineConfig, plan: ModelPlan, pages: int, more: str) -> CacheSize:
    """What so many pages make of `--max-model-len`.

    A length that was not asked for is reduced to what fits; one that was asked for and does not fit is an
    error.
    """
    length, fits = plan.max_model_len, plan.length_in(pages)
    if fits < length and (config.max_model_len is not None or fits < 1):
        one = plan.kv.pages_for(length) * plan.kv.page_bytes
        message = (
            f"the KV cache of {pages * plan.kv.page_bytes / GIB:.2f} GiB holds {fits} tokens, "
            f"and one request of --max-model-len {length} needs {one / GIB:.2f} GiB"
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
    return CacheSize(pages, fits, warning if fits < length else "")
