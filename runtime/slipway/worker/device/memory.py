"""What the device has of memory, and takes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from slipway.exits import OUT_OF_MEMORY, Exit
from slipway.worker.cache_size import GIB

SHRINK = 0.9
"""An allocation that fails is tried again with this share of its size."""
SMALLEST_SHARE = 0.25
"""Of the first size: below that, something else is wrong."""


def device_memory(device: torch.device) -> tuple[int, int]:
    """Bytes free and in all; without a GPU, a quarter of a GiB that tests may fill."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    return GIB // 4, GIB // 4


def measured(device: torch.device, step: Callable[[], None]) -> tuple[int, int]:
    """Bytes that are held when `step` has run, and most that it takes above what was held before.

    What is held no more, of loading too, goes back to the device: the cache is sized as if it were free.
    """
    if device.type != "cuda":
        step()
        return 0, 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    taken = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device), taken


def allocated_within(wanted: int, allocate: Callable[[int], None]) -> int:
    """The largest count up to `wanted` with which `allocate` finds memory.

    Raises Exit where a quarter of what was wanted cannot be had either.
    """
    count = wanted
    while True:
        try:
            allocate(count)
            return count
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            count = int(count * SHRINK)
            if count < wanted * SMALLEST_SHARE:
                raise Exit(
                    OUT_OF_MEMORY,
                    f"the device has no room for a quarter of the KV cache that was planned: {error}",
                    "Another process may have taken its memory meanwhile. Lower --gpu-memory-utilization, or "
                    "set --kv-cache-memory-bytes.",
                    "gpu_memory_utilization",
                ) from None
