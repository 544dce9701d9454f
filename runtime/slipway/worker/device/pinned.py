"""Host memory that the device reads and writes by itself, while the host goes on."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor


def pin(memory: Tensor, owner: object) -> int:
    """Pin `memory` until `owner` is gone. Returns CUDA's error number, 0 where there is none.

    Not by torch's allocator of pinned memory: it rounds up to the next power of two.
    """
    status = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))  # type: ignore[no-untyped-call]
    if not status:
        weakref.finalize(owner, _unpin, memory).atexit = False
    return status


def _unpin(memory: Tensor) -> None:
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
