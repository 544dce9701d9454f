"""Drafts of what goes on from the target's rows, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipway.engine.plan import SlotStart
from slipway.load.arrays import Ints
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.passes import Passes
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState


@dataclass(frozen=True, slots=True)
class RowsBehind:
    """Rows of requests at positions behind each other: where they are only the device knows.

    What is indexed by slot has one place more: -1, which is nobody's slot, is the last.

    rows   [*, width] each
    begun  [slots + 1] int32  position of the first row
    shift  [slots + 1] int32  from a position to its row
    last   [slots + 1, width] each  the row before the first
    """

    rows: Sequence[Tensor]
    begun: Tensor
    shift: Tensor
    last: Sequence[Tensor]

    @classmethod
    def of(
        cls,
        rows: Sequence[Tensor],
        slots: Tensor,
        query_start: Tensor,
        lengths: Tensor,
        last: Sequence[Tensor],
    ) -> RowsBehind:
        """Of requests with these slots, first rows and ends."""
        first = lengths - query_start.diff()
        begun, shift = first.new_zeros(2, len(last[0])).unbind()
        begun[slots], shift[slots] = first, query_start[:-1] - first
        return cls(rows, begun, shift, last)

    def before(self, batch: Batch) -> list[Tensor]:
        """[rows of the batch, width] each: at the position before each row; zeros before the first."""
        slots, before = batch.row_slots, batch.positions - 1
        earlier, nothing = (before < self.begun[slots])[:, None], (before < 0)[:, None]
        row = before + self.shift[slots]
        return [
            torch.where(earlier, last[slots], rows[row.clamp(0, len(rows) - 1)]).masked_fill(nothing, 0.0)
            for rows, last in zip(self.rows, self.last, strict=True)
        ]

    def kept(self, slots: Tensor, end: Tensor) -> list[Tensor]:
        """[slots + 1, width] each: `last` of what comes behind the positions before `end` [slots]."""
        place = end[slots] - 1
        here, row = (place >= self.begun[slots])[:, None], place + self.shift[slots]
        return [
            last.index_put((slots,), torch.where(here, rows[row.clamp(0, len(rows) - 1)], last[slots]))
            for rows, last in zip(self.rows, self.last, strict=True)
        ]


class FromRows(Passes):
    """Goes on from the target's rows, whose last ones it keeps by slot."""

    _last: Sequence[Tensor] = ()
    """[slots + 1, width] each: the target's last rows that stand"""

    def _rows_of_target(self) -> RowsBehind:
        state, count, told = self._state, self._places, self.guesser.told
        self._last = self._last or self._nothing(told)
        slots, starts = state.slots[:count], state.query_start[: count + 1]
        found = RowsBehind.of(told, slots, starts, state.lengths[:count], self._last)
        self._last = found.kept(slots, state.num_computed)  # drafts behind that were rejected
        return found

    def _nothing(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """[slots + 1, width] each"""
        return [one.new_zeros(self._state.num_slots + 1, one.shape[1]) for one in rows]


class HeadsOnDevice(FromRows):
    """Each head draws the token behind that of the head before; what `Heads` is on CPU.

    They keep no keys: each step begins at the last token, with the target's row before it.
    """

    reads_prompts = False

    def __init__(self, state: SlotState, sampler: Sampler, *, vocab: int, length: int) -> None:
        super().__init__(
            state, sampler, vocab=vocab, length=length, most_rows=state.num_slots, few=1, block=1
        )
        self._carried = torch.empty(0, 0)
        """[slots + 1, width]  what the next head goes on from"""

    def _most(self, shape: StepShape, ahead: Ints) -> Ints:
        return (ahead > 0).astype(np.int32)

    def _begin(self) -> None:
        self._own["own_computed"].fill_(self._state.tokens.shape[1])  # `catch_up` bounds it
        self._rows_of_target()
        (self._carried,) = self._last

    def _given(self, batch: Batch, ahead: int) -> Sequence[Tensor]:
        return (self._carried[batch.row_slots],)

    def _told(self, batch: Batch, hidden: Tensor, slots: Tensor, last: Tensor, ahead: int) -> None:
        if not ahead:
            self._carried = last.new_zeros(self._state.num_slots + 1, last.shape[1])
        self._carried[slots] = last


class FollowerOnDevice(FromRows):
    """Rows of its own at each of the target's positions, of its row before that; what `Follower` is on CPU.

    By link it counts up to where rows are made of the target's, its own or those of the link before. Rows
    behind a guess are made of its own, and again when the target's are known.
    """

    def __init__(
        self,
        state: SlotState,
        sampler: Sampler,
        *,
        vocab: int,
        length: int,
        token_budget: int,
        num_links: int,
    ) -> None:
        super().__init__(
            state,
            sampler,
            vocab=vocab,
            length=length,
            most_rows=token_budget + num_links * state.num_slots,
            few=few_rows(state.most_drafts, num_links),
            block=1,
            num_links=num_links,
        )
        self._last_of: dict[int, list[Tensor]] = {}
        """By link behind the first, [slots + 1, width] each: the last standing row of the link before it."""
        self._drawn_from = torch.empty(0, 0, 0)
        """[slots + 1, links, width]  the rows of each link's last guess"""
        self._standing = self._own["own_computed"]

    def start(self, start: SlotStart) -> None:
        super().start(start)
        hit = start.num_computed > 0  # which has a position more than is spared for each link
        for link in range(self._num_links):
            self._arena.put("own_computed", [hit * (start.num_computed + 1 + link)], link, start.slot)

    def _most(self, shape: StepShape, ahead: Ints) -> Ints:
        rows: Ints = shape.num_new + self._num_links * (ahead > 0).astype(np.int32)
        return rows

    def _begin(self) -> None:
        self._source = self._target = self._rows_of_target()
        self._standing = self._own["own_computed"].clone()

    def _aim(self, ahead: int) -> None:
        if self._num_links == 1:
            return  # `append` leaves the next row where another draft is wanted
        state, own, link = self._state, self._own, ahead % self._num_links
        computed, wants = own["own_computed"], own["wanted"] > state.num_drafts
        if ahead < self._num_links:
            own["own_rows"].copy_((computed[0] + link * wants - computed[link]).clamp(min=0))
        else:
            computed[link].copy_(state.num_tokens + state.num_drafts - self._num_links)
            own["own_rows"].copy_(self._num_links * wants)

    def _given(self, batch: Batch, ahead: int) -> Sequence[Tensor]:
        link, slots = ahead % self._num_links, batch.row_slots
        if not ahead:
            return self._target.before(batch)
        if link:
            return self._source.before(batch)
        number = batch.positions - self._own["own_computed"][link][slots]
        return (self._drawn_from[slots, number.clamp(0, self._num_links - 1)],)

    def _told(self, batch: Batch, hidden: Tensor, slots: Tensor, last: Tensor, ahead: int) -> None:
        links, link = self._num_links, ahead % self._num_links
        if self._drawn_from.shape[1:] != (links, last.shape[1]):
            self._drawn_from = last.new_zeros(self._state.num_slots + 1, links, last.shape[1])
        self._drawn_from[slots, link] = last
        if link + 1 == links:
            return
        before = self._last_of.get(link + 1) or self._nothing([hidden])
        self._source = RowsBehind.of([hidden], batch.slots, batch.query_start, batch.lengths, before)
        if ahead < links:
            end = self._own["own_computed"][0]  # what links behind the first have made more is of guesses
            self._last_of[link + 1] = self._source.kept(batch.slots, end)

    def _followed(self) -> None:
        self._standing = torch.maximum(self._standing, self._own["own_computed"][0])

    def _guessed(self) -> None:
        self._own["own_computed"].copy_(self._standing)


def few_rows(most_drafts: int, num_links: int) -> int:
    """Of a request that computes its next tokens, at most: behind these and its drafts each link guesses
    one."""
    return most_drafts + 1 + num_links
