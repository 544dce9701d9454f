"""The worker of a model that pools: steps leave final rows, and nothing is drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from slipway.engine.params import PoolingParams
from slipway.engine.plan import Masks, SlotStart, StepOutput
from slipway.load.arrays import Floats, Ints
from slipway.load.torch_arrays import tensor
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.heads import DeviceLayer
from slipway.worker.device.pinned import sent
from slipway.worker.device.products import Move
from slipway.worker.device.results import Timer, recorded
from slipway.worker.device.row_worker import RowWorker
from slipway.worker.pool import Pooler, enter


@dataclass(frozen=True, slots=True)
class _Vectors:
    """A step under way: its vectors on the host are valid once `ready` has happened.

    counts   [requests]  how many vectors each has
    vectors  [sum of them, columns]
    """

    shape: StepShape
    counts: Sequence[int]
    vectors: Tensor
    ready: torch.cuda.Event | None
    timer: Timer | None


class PoolingWorker(RowWorker):
    """The wanted rows are gathered, or added up, and scored on the device, behind the forward pass; their
    vectors are copied while it goes on.

    So a mean costs the copy of one row, and a reward that of one number a token: rows would take as many
    bytes as the hidden size has, and layers on the host longer than the step. What is left, to cut vectors
    and to normalize them, `Pooler` does with what steps have brought, when they are collected: in their
    order, so that a slot may have passed to another request meanwhile.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        """As of its base, with a plan that has a pooler."""
        super().__init__(*args, **named)
        assert self.plan.pooler is not None, "rows are pooled where there is a pooler"
        self._pooler: Pooler = self.plan.pooler
        self._prompts: dict[int, Ints] = {}
        """By slot the tokens of its prompt."""
        self._started: list[SlotStart] = []
        """With the step that is launched."""
        self._pooled: deque[tuple[list[SlotStart], _Vectors | None]] = deque()
        width = self._pooler.row_width if self._pooler.pooling.type == "MEAN" else 0
        self._sums = torch.zeros(self._state.num_slots, width, device=self._state.device)
        """[num_slots, hidden] fp32  of the rows so far, where means are wanted"""

    @torch.inference_mode()
    def draw(self, masks: Masks | None = None) -> None:
        """Give the device what makes vectors of the step launched last, and their copy to the host."""
        step, self._launched = self._launched, None
        starts, self._started = self._started, []
        if step is None:
            self._pooled.append((starts, None))
            return
        shape = step.shape
        self._advance(step.batch)
        if self._pooler.pooling.type == "MEAN":
            counts, vectors = [*map(int, shape.draws)], self._means(step.batch, shape, step.logits)
        else:
            wanted = self._wanted(shape)
            counts, vectors = [*map(len, wanted)], self._gathered(step.logits, np.concatenate(wanted))
        cuda = vectors.device.type == "cuda"
        host = torch.empty(vectors.shape, pin_memory=cuda)
        host.copy_(vectors, non_blocking=True)
        self._pooled.append((starts, _Vectors(shape, counts, host, recorded(vectors.device), step.timer)))

    def collect(self) -> StepOutput:
        """Wait for the vectors of the oldest step under way, and answer the prompts that ended with it."""
        starts, step = self._pooled.popleft()
        for start in starts:
            self._pooler.start(start.slot, start.pooling or PoolingParams())
        if step is None:
            return StepOutput([], [])
        if step.ready is not None:
            step.ready.synchronize()
        shape = step.shape
        output = StepOutput([[]] * shape.num_requests, [])
        if step.timer is not None:
            output.forward_seconds = step.timer.seconds
        vectors: list[Floats] = np.split(step.vectors.numpy(), np.cumsum(step.counts)[:-1])
        for place, (index, slot) in enumerate(zip(shape.order.tolist(), shape.slots.tolist(), strict=True)):
            self._pooler.add(slot, vectors[place])
            if shape.draws[place]:
                enter(output, index, self._pooler.answer(slot))
        return output

    def _start(self, start: SlotStart) -> None:
        super()._start(start)
        assert start.pooling is not None, "what generates is not served beside what pools"
        second = start.pooling.type_from
        self._state.arena.put("type_from", [len(start.tokens) if second is None else second], start.slot)
        self._prompts[start.slot] = np.array(start.tokens, np.int32)
        self._started.append(start)

    def _move(self, to: Move) -> None:
        super()._move(to)
        for layer in cast(Sequence[DeviceLayer], self._pooler.layers):
            layer.move(to)

    def _use_all(self, batch: Batch, hidden: Tensor, logits: Tensor) -> None:
        """Make a vector of every row, as if all were wanted."""
        self._advance(batch)
        if self._pooler.pooling.type == "MEAN":
            torch.segment_reduce(hidden.float(), "sum", offsets=batch.query_start, unsafe=True, initial=0)
        self._pooler.scored(hidden.float())

    def _wanted(self, shape: StepShape) -> list[Ints]:
        """By request the numbers of its wanted rows, among those of the step."""
        found, begin = [], 0
        for slot, first, count, ends in zip(
            shape.slots.tolist(), shape.first.tolist(), shape.num_new.tolist(), shape.draws, strict=True
        ):
            tokens = self._prompts[slot][first : first + count]
            rows = np.arange(begin, begin + count, dtype=np.int32)
            found.append(rows[self._pooler.wanted(first, tokens, ends=bool(ends))])
            begin += count
        return found

    def _gathered(self, hidden: Tensor, wanted: Ints) -> Tensor:
        """Vectors of these rows."""
        if len(wanted) < len(hidden):
            hidden = hidden.index_select(0, self._sent_numbers(wanted))
        vectors: Tensor = self._pooler.scored(hidden.float())
        return vectors

    def _means(self, batch: Batch, shape: StepShape, hidden: Tensor) -> Tensor:
        """Vectors of the prompts that end. Sums so far are kept by slot, as chunks come."""
        sums = torch.segment_reduce(hidden.float(), "sum", offsets=batch.query_start, unsafe=True, initial=0)
        slots = batch.slots.long()
        begun = self._sent_numbers((shape.first == 0).astype(np.int32))
        sums += self._sums[slots].masked_fill(begun[:, None] > 0, 0.0)
        self._sums[slots] = sums
        ending = np.flatnonzero(shape.draws).astype(np.int32)
        lengths = (shape.first + shape.num_new)[ending]
        means = sums[self._sent_numbers(ending)] / self._sent_numbers(lengths)[:, None]
        vectors: Tensor = self._pooler.scored(means)
        return vectors

    def _sent_numbers(self, numbers: Ints) -> Tensor:
        return sent(tensor(numbers), self._state.device)
