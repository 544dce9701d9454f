"""Weights on their way to the device: one pinned buffer is filled while the other is sent."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK_BYTES = 64 << 20


class Transfer:
    """Copies rows of host tensors to the device. What lies there, or goes to a CPU, is copied at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: list[Tensor] = []
        self._sent: list[torch.cuda.Event] = []
        self._turn = 0
        if device.type == "cuda":
            self._buffers = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            self._sent = [torch.cuda.Event() for _ in self._buffers]  # type: ignore[no-untyped-call]

    def place(self, target: Tensor, rows: Tensor, source: Tensor) -> None:
        """target[rows] = source.

        target  [n, k] on the device    rows  [m] int32    source  [m, k] of any float type
        """
        if target.device.type == "cpu" or source.device == target.device:
            target[rows.long()] = source.to(target.device, target.dtype)
            return
        together = max(1, CHUNK_BYTES // (source[:1].numel() * target.dtype.itemsize))
        neighbours = bool(len(rows)) and int(rows[-1] - rows[0]) == len(rows) - 1
        for begin in range(0, len(source), together):
            part, where = source[begin : begin + together], rows[begin : begin + together]
            staged = self._staged(part, target.dtype)
            if neighbours:
                first = int(where[0])
                target[first : first + len(part)].copy_(staged, non_blocking=True)
            else:
                target.index_copy_(0, where.long().to(self.device), staged.to(self.device, non_blocking=True))
            self._sent[self._turn].record()
            self._turn = 1 - self._turn

    def close(self) -> None:
        """Wait for what is under way and free the buffers."""
        for event in self._sent:
            event.synchronize()
        self._buffers = []

    def _staged(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """The part in the next buffer, once what lay there has been sent."""
        self._sent[self._turn].synchronize()
        size = part.numel() * dtype.itemsize
        staged = self._buffers[self._turn][:size].view(dtype).view(part.shape)
        staged.copy_(part)
        return staged
