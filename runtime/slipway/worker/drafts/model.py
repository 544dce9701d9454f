"""Drafts of a second model, smaller than the target, with keys and values of its own in the same pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipway.engine.config import EngineConfig
from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.arrays import Ints
from slipway.load.checkpoint import Checkpoint
from slipway.load.progress import Progress
from slipway.worker.drafts.bounds import wanted_drafts
from slipway.worker.plan import ModelPlan
from slipway.worker.proposer import NewProposer
from slipway.worker.route import Model
from slipway_kernels.cpu import PageMemory, Ranks, Slots, StepResult, Threads

if TYPE_CHECKING:
    import torch

    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.guesser import Guesser
    from slipway.worker.device.proposer import DeviceProposer
    from slipway.worker.device.sampler import Sampler
    from slipway.worker.device.state import SlotState


@dataclass(frozen=True, slots=True)
class DraftModelPlan:
    """A draft model before its weights. settings: as if it were served alone."""

    model: ModelPlan
    settings: EngineConfig
    num_drafts: int

    num_recomputed = 0

    @property
    def stored_bytes(self) -> int:
        return self.checkpoint.total_bytes

    @property
    def checkpoint(self) -> Checkpoint:
        return self.model.checkpoint

    def read(self, threads: Threads, progress: Progress, ranks: Ranks | None = None) -> NewProposer:
        """Where it is not shared, each rank has it all: they draw the same, from the same slots."""
        shared = self.settings.tensor_parallel_size > 1
        make = self.model.read(threads, progress, ranks if shared else None)

        def proposer(slots: Slots, pages: PageMemory, max_tokens: int, target: Model) -> DraftModel:
            own = Slots(slots.num_slots, slots.max_len, slots.num_groups, slots.max_blocks, slots)
            model, _ = make(own, pages, max_tokens, 0)
            return DraftModel(model, own, max_tokens, self.model.max_model_len, self.settings.block_size)

        return proposer

    def on_device(self, state: SlotState, sampler: Sampler, token_budget: int) -> DeviceProposer:
        from slipway.worker.device.draft_model import DraftModelOnDevice  # imports torch

        return DraftModelOnDevice(
            state,
            sampler,
            vocab=self.model.vocab,
            length=self.model.max_model_len,
            block_size=self.settings.block_size,
            token_budget=token_budget,
        )

    def read_on_device(self, device: torch.device, target: AnyDecoder) -> Guesser:
        from slipway.worker.device.draft_model import BEHIND_DRAFTS, InSharedPages  # imports torch
        from slipway.worker.device.load import read_decoder

        shared = self.settings.tensor_parallel_size > 1
        ranks = target.ranks if shared else None
        decoder = read_decoder(self.model, self.settings, device, BEHIND_DRAFTS, ranks)
        return InSharedPages(decoder, self.model.kv)

    def opened_again(self, progress: Progress) -> DraftModelPlan:
        return replace(self, model=self.model.opened_again(self.settings, progress))


class DraftModel:
    """Draws what it would say in the target's place, token by token, all slots together.

    It draws with the target's record: same temperature, penalties and seed, so that the noise of a draw is
    the same for both, and they differ no more than the models do (Daliri, Musco and Suresh 2024). Its slots
    share tokens and pages with the target's: what it draws stands where drafts are looked for, and what a
    prefix hit brings has its keys, too. For that it follows the target at least to the end of the last whole
    block, also where it guesses nothing. Prompts of embeddings have no tokens for it to read: there it
    guesses nothing, and no request with tokens finds their pages.
    """

    def __init__(self, model: Model, slots: Slots, max_tokens: int, length: int, block_size: int) -> None:
        """slots: those that the model computes, beside the target's; max_tokens: of one step of it; length:
        tokens of a request that it may read."""
        self._model = model
        self._slots = slots
        self._max_tokens = max_tokens
        self._length = length
        self._block_size = block_size
        self._reads = np.zeros(slots.num_slots, np.int32)
        """[slot]  1: its request has tokens"""

    def start(self, slots: Slots, start: SlotStart) -> None:
        self._slots.num_computed[start.slot] = start.num_computed
        self._slots.sample_as(start.slot, slots)
        self._reads[start.slot] = not start.given

    def precede(self, slots: Slots, plan: StepPlan) -> None:
        return

    def follow(self, slots: Slots, plan: StepPlan, result: StepResult) -> None:
        own, at = self._slots, np.array(plan.slots, np.int32)
        known, computed = slots.num_tokens[at], slots.num_computed[at]
        standing = computed.copy()  # of what was verified; behind that, own keys are of rejected drafts
        for index in plan.drafts:  # the target verified others in their place
            standing[index] = known[index] - result.requests["num_drawn"][index]
        own.num_tokens[at] = known
        own.num_computed[at] = np.minimum(own.num_computed[at], standing)
        wanted = wanted_drafts(slots, plan, result, self._length) * self._reads[at]
        whole = np.minimum(computed, self._length) // self._block_size * self._block_size
        end = np.where(wanted > 0, known, whole) * self._reads[at]
        going = self._compute(at, np.maximum(end - own.num_computed[at], 0)) & (wanted > 0)
        found = going.astype(np.int32)
        while (going := going & (wanted > found)).any():
            going[going] = self._compute(at[going], np.ones(going.sum(), np.int32))
            found += going
        slots.num_drafts[at[wanted > 0]] = found[wanted > 0]

    def _compute(self, at: Ints, num_new: Ints) -> NDArray[np.bool_]:
        """Compute so many tokens of each slot, and draw where it has caught up; False where that failed."""
        fine = np.ones(len(at), bool)
        while num_new.any():
            before = np.cumsum(num_new) - num_new
            now = np.clip(self._max_tokens - before, 0, num_new)
            chosen = np.flatnonzero(now)
            result = self._model.step(at[chosen], now[chosen])
            fine[chosen] &= result.requests["failed"] == 0
            num_new = num_new - now
        return fine
