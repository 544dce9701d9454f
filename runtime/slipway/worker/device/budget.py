"""How much of the device's memory the KV cache may take. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.worker.cache_size import GIB

GRAPH_BYTES = 24 << 20
"""Of one captured graph, beside the pool of activations that all share."""


def default_token_budget(memory: int) -> int:
    """Most tokens of a step where nothing is asked for, on a device with so many bytes."""
    return 8192 if memory >= 70 * GIB else 2048


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


def slot_bytes(groups: int, block_size: int) -> float:
    """What each position of the longest context takes in a request slot: its token, and its part of a page's
    entry in the table of each group."""
    return 4 * (1 + groups / block_size)
