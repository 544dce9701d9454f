"""How much of the device's memory the KV cache may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from slipway.exits import OUT_OF_MEMORY, Exit
from slipway.worker.cache_size import GIB

GRAPH_BYTES = 24 << 20
"""Of one captured graph, beside the pool of activations that all share."""
SHRINK = 0.9
"""An allocation that fails is tried again with this share of its size."""
SMALLEST_SHARE = 0.25
"""Of the first size: below that, something else is wrong."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The device's memory, in bytes, as this server divides it.

    total        of the device
    share        that may be used (`--gpu-memory-utilization`)
    others       used by the CUDA context, libraries and other processes before the model was read
    weights      held by the model, adapters, request state and workspaces
    activations  most that a step takes beside them, measured in a step of the largest size
    graphs       reserved for captured graphs
    """

    total: int
    share: float
    others: int
    weights: int
    activations: int
    graphs: int

    @property
    def kv_cache(self) -> int:
        """What is left for pages; 0 where nothing is."""
        own = int(self.total * self.share) - self.weights - self.activations - self.graphs
        return max(0, min(own, self.total - self.weights - self.activations - self.graphs - self.others))

    def explained(self) -> str:
        """The sum, in one line."""
        parts = (("weights", self.weights), ("activations", self.activations), ("graphs", self.graphs))
        spent = ", ".join(f"{size / GIB:.2f} of {name}" for name, size in parts)
        return (
            f"{self.kv_cache / GIB:.2f} GiB for the KV cache: {self.share:.0%} of {self.total / GIB:.2f} GiB "
            f"less {spent}; {self.others / GIB:.2f} GiB were taken by others before"
        )


def device_memory(device: torch.device) -> tuple[int, int]:
    """Bytes free and in all; without a GPU, a quarter of a GiB that tests may fill."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    return GIB // 4, GIB // 4


def measured(device: torch.device, step: Callable[[], None]) -> tuple[int, int]:
    """Bytes that are held when `step` has run, and most that it takes above what was held before."""
    if device.type != "cuda":
        step()
        return 0, 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device) - before


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
