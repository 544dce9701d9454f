"""Drafts of what goes on from the target's rows, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.arrays import Ints
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.passes import Passes
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where the rows of a step of the target are, of its requests: only the device knows.

    slots  [requests] int32
    begun  [requests] int32  position of the first row
    shift  [requests] int32  from a position to its row
    last   [requests] int32  the row of the last position that stands: drafts behind it were rejected
    """

    slots: Tensor
    begun: Tensor
    shift: Tensor
    last: Tensor

    @classmethod
    def of(cls, state: SlotState, requests: int) -> StepRows:
        slots, starts = state.slots[:requests], state.query_start[: requests + 1]
        begun = state.lengths[:requests] - starts.diff()
        shift = starts[:-1] - begun
        return cls(slots, begun, shift, state.num_computed[slots] - 1 + shift)


class FromRows(Passes):
    """Keeps, by slot, what the next pass goes on from: at first the target's rows, then its own.

    What is indexed by slot has one place more: -1, which is nobody's slot, is the last.
    """

    def __init__(
        self, state: SlotState, sampler: Sampler, *, vocab: int, length: int, most_rows: int, few: int
    ) -> None:
        """As of `Passes`."""
        super().__init__(state, sampler, vocab=vocab, length=length, most_rows=most_rows, few=few, block=1)
        self._requests = 0
        """Of the target's step."""
        self._carried = torch.empty(0, 0)
        """[slots + 1, width]"""

    def launch(self, plan: StepPlan, shape: StepShape) -> None:
        super().launch(plan, shape)
        self._requests = shape.num_requests

    def largest_step(self) -> None:
        self._requests = 0
        super().largest_step()

    def _given(self, batch: Batch, ahead: int) -> Sequence[Tensor]:
        return (self._carried[batch.row_slots],)

    def _told(self, slots: Tensor, rows: Tensor) -> None:
        if self._carried.shape[1] != rows.shape[1]:
            self._carried = rows.new_zeros(self._state.num_slots + 1, rows.shape[1])
        self._carried[slots] = rows


class HeadsOnDevice(FromRows):
    """Each head draws the token behind that of the head before; what `Heads` is on CPU.

    They keep no keys: each step begins at the last token, with the target's row before it.
    """

    reads_prompts = False

    def __init__(self, state: SlotState, sampler: Sampler, *, vocab: int, length: int) -> None:
        super().__init__(state, sampler, vocab=vocab, length=length, most_rows=state.num_slots, few=1)

    def _most(self, shape: StepShape, ahead: Ints) -> Ints:
        return (ahead > 0).astype(np.int32)

    def _begin(self) -> None:
        self._own["own_computed"].fill_(self._state.tokens.shape[1])  # `catch_up` bounds it
        step = StepRows.of(self._state, self._requests)
        self._told(step.slots, self.guesser.told[0][step.last])


class FollowerOnDevice(FromRows):
    """Rows of its own at each of the target's positions, of its row before that; what `Follower` is on CPU.

    Its own count says up to where its rows are made of the target's. Rows behind a guess are made of its own,
    and again when the target's are known.
    """

    def __init__(
        self, state: SlotState, sampler: Sampler, *, vocab: int, length: int, token_budget: int
    ) -> None:
        most_rows, few = token_budget + state.num_slots, few_rows(state.most_drafts)
        super().__init__(state, sampler, vocab=vocab, length=length, most_rows=most_rows, few=few)
        self._last: list[Tensor] = []
        """[slots + 1, hidden] each: the target's last rows that stand"""
        self._standing = self._own["own_computed"]

    def start(self, start: SlotStart) -> None:
        super().start(start)
        # A prefix hit has one position more than it spares. So may what was swapped out: where it has not,
        # that one key is of no row, which costs drafts and no token.
        hit = start.num_computed > 0
        self._arena.put("own_computed", [start.num_computed + hit], start.slot)

    def _most(self, shape: StepShape, ahead: Ints) -> Ints:
        rows: Ints = shape.num_new + (ahead > 0).astype(np.int32)
        return rows

    def _begin(self) -> None:
        told, places = self.guesser.told, self._state.num_slots + 1
        if not self._last:
            self._last = [rows.new_zeros(places, rows.shape[1]) for rows in told]
        step = self._step = StepRows.of(self._state, self._requests)
        self._begun, self._shift = step.begun.new_zeros(2, places).unbind()
        self._begun[step.slots], self._shift[step.slots] = step.begun, step.shift

    def _given(self, batch: Batch, ahead: int) -> Sequence[Tensor]:
        if ahead:
            return super()._given(batch, ahead)
        slots, before = batch.row_slots, batch.positions - 1
        earlier, nothing = (before < self._begun[slots])[:, None], (before < 0)[:, None]
        row = before + self._shift[slots]
        return [
            torch.where(earlier, last[slots], told[row.clamp(0, len(told) - 1)]).masked_fill(nothing, 0.0)
            for told, last in zip(self.guesser.told, self._last, strict=True)
        ]

    def _followed(self) -> None:
        for told, last in zip(self.guesser.told, self._last, strict=True):
            last[self._step.slots] = told[self._step.last]
        self._standing = self._own["own_computed"].clone()

    def _guessed(self) -> None:
        self._own["own_computed"].copy_(self._standing)


def few_rows(most_drafts: int) -> int:
    """Of a request that computes its next tokens, at most: behind these and its drafts one is guessed."""
    return most_drafts + 2
