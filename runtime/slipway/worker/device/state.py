"""Request state on the device: 32-bit words in one arena, changed by one upload a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipway.load.arrays import Ints
from slipway.worker.device.budget import slot_bytes
from slipway_kernels.slots import apply_runs

UPLOAD_WORDS = 1 << 20
"""Payload of one upload; a step that changes more sends several."""
UPLOAD_RUNS = 1 << 13
_BUFFERS = 2
_ALIGNMENT = 32
"""Words: arrays start at multiples of 128 bytes, so that kernels load whole vectors."""


def _aligned(words: int) -> int:
    return -(-words // _ALIGNMENT) * _ALIGNMENT


@dataclass(slots=True)
class _Buffer:
    """Host memory that the device reads while the next buffer is filled."""

    payload: Tensor  # [UPLOAD_WORDS] int32, pinned
    runs: Tensor  # [UPLOAD_RUNS, 3] int64, pinned: destination word, source word, count
    device_payload: Tensor
    device_runs: Tensor
    sent: torch.cuda.Event | None = None


class Arena:
    """Named arrays of 32-bit words in one allocation on the device, whose changes go there in one copy.

    Two buffers take turns to gather them: one is filled while the device still reads the other.
    """

    def __init__(self, device: torch.device, shapes: Mapping[str, tuple[int, ...]]) -> None:
        sizes = [_aligned(math.prod(shape)) for shape in shapes.values()]
        self.words = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self.arrays = {
            name: part[: math.prod(shape)].view(shape)
            for (name, shape), part in zip(shapes.items(), torch.split(self.words, sizes), strict=True)
        }
        self._places = {name: (int(one.storage_offset()), one.stride()) for name, one in self.arrays.items()}
        self._cuda = device.type == "cuda"
        self._buffers = [self._buffer() for _ in range(_BUFFERS)]
        self._turn = 0
        self._open()

    def put(self, name: str, values: Sequence[int] | Ints, *index: int) -> None:
        """From this element, or row, of the array on its words become `values`, once they are sent."""
        words, place = np.asarray(values, np.int32), self.place(name, *index)
        start = 0
        while start < len(words):
            if self._words == UPLOAD_WORDS or self._count == UPLOAD_RUNS:
                self.send()
            count = min(len(words) - start, UPLOAD_WORDS - self._words)
            self._payload[self._words : self._words + count] = words[start : start + count]
            self._runs[self._count] = (place + start, self._words, count)
            self._words += count
            self._count += 1
            start += count

    def place(self, name: str, *index: int) -> int:
        """Word at which an element, or a row where fewer indices are given, begins."""
        start, strides = self._places[name]
        return start + sum(number * stride for number, stride in zip(index, strides, strict=False))

    def send(self) -> None:
        """Have the device apply what was put, after all work that it was given before."""
        if not self._count:
            return
        buffer = self._buffers[self._turn]
        payload, runs = buffer.device_payload[: self._words], buffer.device_runs[: self._count]
        payload.copy_(buffer.payload[: self._words], non_blocking=True)
        runs.copy_(buffer.runs[: self._count], non_blocking=True)
        apply_runs(self.words, runs, payload)
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
        device = self.words.device
        return _Buffer(
            torch.empty(UPLOAD_WORDS, dtype=torch.int32, pin_memory=self._cuda),
            torch.empty((UPLOAD_RUNS, 3), dtype=torch.int64, pin_memory=self._cuda),
            torch.empty(UPLOAD_WORDS, dtype=torch.int32, device=device),
            torch.empty((UPLOAD_RUNS, 3), dtype=torch.int64, device=device),
        )


class SlotState:
    """The worker's state of every request slot, and of the step that it computes.

    tokens              [num_slots, max_len]   prompt, then output, then drafts
    num_tokens, num_computed, num_drafts, prompt_len   [num_slots]
    type_from           [num_slots]            position of the second text of a pair
    tables              [groups, num_slots, max_blocks]   page of each block
    records             [num_slots, record_words]   how tokens are drawn
    adapters            [num_slots]   place on the device of its adapter, as a step that has some wants it; -1
    rotations           [num_slots]   which rotation its adapter has; 0: the model's
    Told of a step, by request:
    slots               [num_slots]       -1: none
    row_start           [num_slots + 1]   first row of each, where every draft that is allowed is there
    draws               [num_slots]       rows that draw, at most
    What kernels make of it is in `Batch`; counts [num_slots]: tokens that each request has drawn
    """

    tokens: Tensor
    num_tokens: Tensor
    num_computed: Tensor
    num_drafts: Tensor
    prompt_len: Tensor
    type_from: Tensor
    tables: Tensor
    records: Tensor
    adapters: Tensor
    rotations: Tensor
    slots: Tensor
    row_start: Tensor
    draws: Tensor
    token_ids: Tensor
    positions: Tensor
    row_slots: Tensor
    query_start: Tensor
    lengths: Tensor
    draw_rows: Tensor
    draw_slots: Tensor
    draw_lengths: Tensor
    counts: Tensor

    def __init__(
        self,
        num_slots: int,
        groups: int,
        block_size: int,
        record_words: int,
        token_budget: int,
        most_drafts: int,
        device: torch.device,
    ) -> None:
        self.num_slots = num_slots
        self.most_drafts = most_drafts
        self.device = device
        self._groups = groups
        self._block_size = block_size
        self._shapes: dict[str, tuple[int, ...]] = {
            "records": (num_slots, record_words),
            **dict.fromkeys(("num_tokens", "num_computed", "num_drafts"), (num_slots,)),
            **dict.fromkeys(("prompt_len", "type_from", "adapters", "rotations"), (num_slots,)),
            **dict.fromkeys(("slots", "draws", "lengths", "counts"), (num_slots,)),
            **dict.fromkeys(("row_start", "query_start"), (num_slots + 1,)),
            **dict.fromkeys(("token_ids", "positions", "row_slots"), (token_budget,)),
            **dict.fromkeys(("draw_rows", "draw_slots", "draw_lengths"), (num_slots * (1 + most_drafts),)),
        }

    @property
    def position_bytes(self) -> float:
        """What each position of the longest context takes in all slots together."""
        return self.num_slots * slot_bytes(self._groups, self._block_size)

    def allocate(self, max_len: int) -> None:
        """Empty slots, each with room for so many tokens; how many is known last of all sizes."""
        # Rows begin at multiples of 128 bytes whatever the length: kernels are compiled for such strides.
        width, max_blocks = _aligned(max_len), _aligned(-(-max_len // self._block_size))
        of_length = {
            "tokens": (self.num_slots, width),
            "tables": (self._groups, self.num_slots, max_blocks),
        }
        self.arena = Arena(self.device, self._shapes | of_length)
        for name, array in self.arena.arrays.items():
            setattr(self, name, array)
        self.tokens = self.tokens[:, :max_len]

    def drafts(self, slots: Tensor) -> Tensor:
        """Those that these slots verify next: [slots, most_drafts], -1 behind them."""
        of, number = slots.long()[:, None], torch.arange(self.most_drafts, device=self.device)
        at = (self.num_tokens[of] + number).clamp(max=self.tokens.shape[1] - 1)
        return self.tokens[of, at].masked_fill(number >= self.num_drafts[of], -1)
