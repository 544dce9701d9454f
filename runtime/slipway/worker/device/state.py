"""Request state on the device: 32-bit words in one arena, changed by one upload a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipway_kernels.slots import apply_runs

UPLOAD_WORDS = 1 << 20
"""Payload of one upload; a step that changes more sends several."""
UPLOAD_RUNS = 1 << 13
_BUFFERS = 2
_ALIGNMENT = 32
"""Words: arrays start at multiples of 128 bytes, so that kernels load whole vectors."""

Words = NDArray[np.int32]


class Arena:
    """Named arrays of 32-bit words in one allocation on the device."""

    def __init__(self, device: torch.device, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.device = device
        self._shapes = dict(shapes)
        self._starts: dict[str, int] = {}
        end = 0
        for name, shape in shapes.items():
            self._starts[name] = end
            end += -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT
        self.words = torch.zeros(end, dtype=torch.int32, device=device)

    def array(self, name: str) -> Tensor:
        """The array, of its shape; a view."""
        start, shape = self._starts[name], self._shapes[name]
        return self.words[start : start + math.prod(shape)].view(shape)

    def place(self, name: str, *index: int) -> int:
        """Word at which an element, or a row where fewer indices are given, begins."""
        shape = self._shapes[name]
        place = 0
        for axis, size in enumerate(shape):
            place = place * size + (index[axis] if axis < len(index) else 0)
        return self._starts[name] + place


@dataclass(slots=True)
class _Buffer:
    """Host memory that the device reads while the next buffer is filled."""

    payload: Tensor  # [UPLOAD_WORDS] int32, pinned
    runs: Tensor  # [UPLOAD_RUNS, 3] int64, pinned: destination word, source word, count
    device_payload: Tensor
    device_runs: Tensor
    sent: torch.cuda.Event | None = None


class Upload:
    """Gathers a step's changes to an arena and sends them in one copy.

    Two buffers take turns: one is filled while the device still reads the other.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._cuda = arena.device.type == "cuda"
        self._buffers = [self._buffer() for _ in range(_BUFFERS)]
        self._turn = 0
        self._words = 0
        self._count = 0
        self._open()

    def put(self, place: int, values: Words) -> None:
        """The words from `place` on become `values`."""
        start = 0
        while start < len(values):
            if self._words == UPLOAD_WORDS or self._count == UPLOAD_RUNS:
                self.send()
            count = min(len(values) - start, UPLOAD_WORDS - self._words)
            self._payload[self._words : self._words + count] = values[start : start + count]
            self._runs[self._count] = (place + start, self._words, count)
            self._words += count
            self._count += 1
            start += count

    def send(self) -> None:
        """Have the device apply what was put, after all work that it was given before."""
        if not self._count:
            return
        buffer = self._buffers[self._turn]
        payload, runs = buffer.device_payload[: self._words], buffer.device_runs[: self._count]
        payload.copy_(buffer.payload[: self._words], non_blocking=True)
        runs.copy_(buffer.runs[: self._count], non_blocking=True)
        apply_runs(self._arena.words, runs, payload)
        if self._cuda:
            buffer.sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            buffer.sent.record()
        self._turn = (self._turn + 1) % _BUFFERS
        self._open()

    def _open(self) -> None:
        buffer = self._buffers[self._turn]
        if buffer.sent is not None:
            buffer.sent.synchronize()
        self._payload = buffer.payload.numpy()
        self._runs = buffer.runs.numpy()
        self._words = self._count = 0

    def _buffer(self) -> _Buffer:
        device = self._arena.device
        return _Buffer(
            torch.empty(UPLOAD_WORDS, dtype=torch.int32, pin_memory=self._cuda),
            torch.empty((UPLOAD_RUNS, 3), dtype=torch.int64, pin_memory=self._cuda),
            torch.empty(UPLOAD_WORDS, dtype=torch.int32, device=device),
            torch.empty((UPLOAD_RUNS, 3), dtype=torch.int64, device=device),
        )


class SlotState:
    """The worker's state of every request slot, and which of them a step is of.

    tokens                               [num_slots, max_len]   prompt, then output
    num_tokens, num_computed, prompt_len [num_slots]
    tables                               [groups, num_slots, max_blocks]   page of each block
    records                              [num_slots, record_words]   how tokens are drawn
    slots, draw_slots                    [num_slots]       of the step's requests; -1: none
    query_start                          [num_slots + 1]   first row of each
    """

    def __init__(
        self,
        num_slots: int,
        max_len: int,
        groups: int,
        max_blocks: int,
        record_words: int,
        device: torch.device,
    ) -> None:
        self.num_slots = num_slots
        self.device = device
        self._arena = Arena(
            device,
            {
                "tokens": (num_slots, max_len),
                "num_tokens": (num_slots,),
                "num_computed": (num_slots,),
                "prompt_len": (num_slots,),
                "tables": (groups, num_slots, max_blocks),
                "records": (num_slots, record_words),
                "slots": (num_slots,),
                "draw_slots": (num_slots,),
                "query_start": (num_slots + 1,),
            },
        )
        self.upload = Upload(self._arena)
        self.tokens = self._arena.array("tokens")
        self.num_tokens = self._arena.array("num_tokens")
        self.num_computed = self._arena.array("num_computed")
        self.prompt_len = self._arena.array("prompt_len")
        self.tables = self._arena.array("tables")
        self.records = self._arena.array("records")
        self.slots = self._arena.array("slots")
        self.draw_slots = self._arena.array("draw_slots")
        self.query_start = self._arena.array("query_start")

    def put(self, name: str, values: Sequence[int] | Words, *place: int) -> None:
        """From `place` on the array becomes `values`, once the upload is sent."""
        self.upload.put(self._arena.place(name, *place), np.asarray(values, np.int32))
