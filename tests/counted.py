"""A real engine whose drafts are counted, and a proposer that is right as often as a test wants."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from local_engine import LocalEngine
from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.arrays import Ints
from slipway.worker.cpu import CpuWorker
from slipway.worker.proposer import Proposer, TokenProposer
from slipway_kernels.cpu import Slots, StepResult


class Counted:
    """The model of an engine's worker, with the drafts that its steps have accepted and rejected."""

    def __init__(self, engine: LocalEngine) -> None:
        worker: Any = engine.drawing
        assert isinstance(worker, CpuWorker)
        self._slots, self._model, worker._model = worker.slots, worker._model, self
        self.taken, self.told = self._model.taken, self._model.told
        self.accepted = self.rejected = 0

    def step(self, slots: Ints, num_new: Ints, num_drafts: Ints, *others: Any) -> StepResult:
        verified = int(np.minimum(num_drafts, self._slots.num_drafts[slots]).sum())
        result: StepResult = self._model.step(slots, num_new, num_drafts, *others)
        accepted = int(np.maximum(result.requests["num_drawn"] - 1, 0).sum())
        self.accepted += accepted
        self.rejected += verified - accepted
        return result


@dataclass
class Knowing(TokenProposer):
    """Proposes what it knows to come, each token wrong at `rate`."""

    texts: Sequence[Sequence[int]]
    """Prompt and output of each request."""
    num_drafts: int
    rate: float
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        super().__init__()

    def propose(self, tokens: Ints) -> Ints:
        known = tokens.tolist()
        text = next((text for text in self.texts if list(text[: len(known)]) == known), known)
        guess = [
            self.rng.randrange(3, 500) if self.rng.random() < self.rate else token
            for token in text[len(known) :][: self.num_drafts]
        ]
        return np.array(guess, np.int32)


@dataclass
class Helped(Knowing):
    """Another proposer, in whose place it proposes for a `share` of the draws: random weights are hardly ever
    right, and n-grams where text does not repeat itself."""

    other: Proposer = field(kw_only=True)
    share: float = field(kw_only=True)

    def start(self, slots: Slots, start: SlotStart) -> None:
        super().start(slots, start)
        self.other.start(slots, start)

    def precede(self, slots: Slots, plan: StepPlan) -> None:
        self.other.precede(slots, plan)
        for index, most in enumerate(plan.num_drafts):
            if most and index not in plan.drafts and plan.slots[index] not in self._masked:
                self._help(slots, plan.slots[index])

    def follow(self, slots: Slots, plan: StepPlan, result: StepResult) -> None:
        self.other.follow(slots, plan, result)
        for slot, drawn in zip(plan.slots, result.requests["num_drawn"].tolist(), strict=True):
            if drawn and slot in self._masked:
                self._help(slots, slot)

    def _help(self, slots: Slots, slot: int) -> None:
        if self.rng.random() < self.share:
            slots.guess(slot, self.propose(slots.known(slot)))
