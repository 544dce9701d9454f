"""Weights that wait in host memory while the engine sleeps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slipway.worker.device.pinned import HostMemory
from slipway.worker.device.products import Move

WEIGHTS = HostMemory(
    "weights that sleep",
    "enable_sleep_mode",
    "Give the container more memory, or sleep at level 2, which drops them.",
)


class Evicted:
    """Tensors without their memory on the device, which keep their views and their shapes.

    A storage is emptied and filled in its place, so that whatever shares it, tied matrices and buffers of
    layers that are streamed among that, holds again what it held; its address changes.
    """

    def __init__(self, visit: Callable[[Move], None], device: torch.device, workers: int) -> None:
        """Raises Exit where the host has no room; nothing has changed then.

        visit    shows each tensor
        workers  of this host, each of which keeps as much there, at the same time
        """
        found: dict[int, torch.UntypedStorage] = {}

        def see(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if tensor.device.type == device.type and storage.resizable() and storage.nbytes():
                found[storage.data_ptr()] = storage
            return tensor

        visit(see)
        WEIGHTS.check(workers * sum(storage.nbytes() for storage in found.values()))
        self._left = [(storage, _on_host(storage)) for storage in found.values()]
        for storage in found.values():
            storage.resize_(0)

    def restore(self) -> None:
        """Raises torch.OutOfMemoryError where the device has no room any more; it can be tried again."""
        while self._left:
            storage, kept = self._left[-1]
            storage.resize_(kept.nbytes())
            storage.copy_(kept, non_blocking=False)
            self._left.pop()


def _on_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    kept = torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage()
    kept.copy_(storage, non_blocking=False)
    return kept
