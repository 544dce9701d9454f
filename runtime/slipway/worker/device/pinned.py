"""Host memory that the device reads and writes by itself, while the host goes on."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.exits import OUT_OF_MEMORY, Exit
from slipway.machine import available_memory
from slipway.worker.cache_size import GIB


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What is kept in host memory, and what is said where there is no room for it.

    content   in the plural
    argument  that asks for it, and `hint` what to do
    """

    content: str
    argument: str
    hint: str

    def check(self, size: int) -> None:
        """Raises Exit where so many bytes are not to be had."""
        if size > (left := available_memory()):
            raise self._no_room(size, f"{left / GIB:.2f} GiB are left")

    def pin(self, memory: Tensor, owner: object) -> None:
        """Pin `memory` until `owner` is gone. Raises Exit where the driver refuses.

        Not by torch's allocator of pinned memory: it rounds up to the next power of two.
        """
        status = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))  # type: ignore[no-untyped-call]
        if status:
            raise self._no_room(memory.nbytes, f"the driver refused to pin it with CUDA error {status}")
        weakref.finalize(owner, _unpin, memory).atexit = False

    def _no_room(self, size: int, why: str) -> Exit:
        message = f"the host has no room for {size / GIB:.2f} GiB of {self.content}: {why}"
        return Exit(OUT_OF_MEMORY, message, self.hint, self.argument)


def sent(host: Tensor, device: torch.device) -> Tensor:
    """What lies on the host as a tensor of the device, which copies it when it has come so far."""
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def _unpin(memory: Tensor) -> None:
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
