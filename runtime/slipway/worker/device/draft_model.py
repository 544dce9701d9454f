"""A draft model on the device, over slots and pages that it shares with the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from slipway.engine.plan import SlotStart
from slipway.load.arrays import Ints
from slipway.model.kv import KVLayout
from slipway.worker.device.any_decoder import AnyDecoder
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.passes import Passes
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState

BEHIND_DRAFTS = 2
"""Tokens that a model has to read which guessed behind the step before: the last draft, where all were
accepted, and what was drawn behind it."""


class Behind:
    """By how many tokens the model may come behind the target, slot by slot, as far as the host knows.

    The kernels know it exactly. What the host says too much leaves rows unused; were it too little, nothing
    would be guessed in that step.
    """

    def __init__(self, num_slots: int, block_size: int) -> None:
        self._block_size = block_size
        self._behind = np.zeros(num_slots, np.int32)
        """At most, of what the target has computed."""
        self._unsure = np.zeros(num_slots, np.int32)
        """Drafts of the last step, whose end the positions of the next plan do not know."""
        self._guessed = np.zeros(num_slots, bool)
        """Behind the last step."""

    def start(self, slot: int) -> None:
        self._behind[slot] = self._unsure[slot] = 0
        self._guessed[slot] = False

    def rows(self, shape: StepShape, ahead: Ints) -> Ints:
        """[requests]  tokens that it may have to read behind this step; 0 where no block ends in vain."""
        slots, block = shape.slots, self._block_size
        ends = shape.first + shape.num_new
        unsure = shape.num_drafts + self._unsure[slots]
        behind = np.where(self._guessed[slots], BEHIND_DRAFTS - 1, self._behind[slots] + shape.num_new)
        ending = ends // block * block > ends - unsure - behind
        rows = np.where(ahead > 0, behind + 1, behind * ending)
        self._behind[slots] = np.where(ending, np.minimum(behind, block - 1), behind)
        self._unsure[slots] = shape.num_drafts
        self._guessed[slots] = ahead > 0
        found: Ints = np.minimum(rows, ends + 1).astype(np.int32)
        return found


class InSharedPages:
    """A decoder that guesses, whose layers have a part of their own in the target's pages."""

    told: Sequence[Tensor] = ()

    def __init__(self, decoder: AnyDecoder, layout: KVLayout) -> None:
        """layout: which part of the pages its layers have"""
        self.move = decoder.move
        self._decoder = decoder
        self._layout = layout

    def use(self, pages: DevicePages) -> None:
        self._decoder.use(pages.sharing(self._layout))

    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor:
        return self._decoder.hidden(batch)

    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor:
        return self._decoder.logits(hidden, slots, None)


class DraftModelOnDevice(Passes):
    """What `DraftModel` is on CPU: it reads tokens alone, and follows at least by whole blocks."""

    def __init__(
        self,
        state: SlotState,
        sampler: Sampler,
        *,
        vocab: int,
        length: int,
        block_size: int,
        token_budget: int,
    ) -> None:
        """vocab: tokens that the target draws; length: tokens of a request that the model can read"""
        super().__init__(
            state,
            sampler,
            vocab=vocab,
            length=length,
            # Of a prompt, those of the largest step and what it may come behind.
            most_rows=token_budget + block_size,
            few=BEHIND_DRAFTS,
            block=block_size,
        )
        self._behind = Behind(state.num_slots, block_size)

    def start(self, start: SlotStart) -> None:
        super().start(start)
        self._behind.start(start.slot)

    def _most(self, shape: StepShape, ahead: Ints) -> Ints:
        return self._behind.rows(shape, ahead)
