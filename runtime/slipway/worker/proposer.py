"""What guesses the tokens that a slot's next draw verifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.arrays import Ints
from slipway.load.checkpoint import Checkpoint
from slipway.load.progress import Progress
from slipway.worker.route import Model
from slipway_kernels.cpu import PageMemory, Ranks, Slots, StepResult, Threads

if TYPE_CHECKING:
    import torch

    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.guesser import Guesser
    from slipway.worker.device.proposer import DeviceProposer
    from slipway.worker.device.sampler import Sampler
    from slipway.worker.device.state import SlotState


class Proposer(Protocol):
    """Leaves drafts in slots, behind their tokens; the slot's next draw verifies them.

    The slots are those of the model for which it guesses.
    """

    def start(self, slots: Slots, start: SlotStart) -> None:
        """A request has taken a slot: its tokens and its way to draw are there."""

    def precede(self, slots: Slots, plan: StepPlan) -> None:
        """A step is about to verify what slots hold: guess now what need not be guessed before."""

    def follow(self, slots: Slots, plan: StepPlan, result: StepResult) -> None:
        """A step has run: guess what follows where it drew."""


NewProposer = Callable[[Slots, PageMemory, int, Model], Proposer]
"""Makes what guesses for a model over these slots and pages; it is also told the most tokens of a step."""


class DraftPlan(Protocol):
    """A model that guesses for another, before its weights."""

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def num_drafts(self) -> int:
        """Most drafts of a slot."""

    @property
    def stored_bytes(self) -> int:
        """Of its weights, as they are stored, beside the target's."""

    @property
    def num_recomputed(self) -> int:
        """Last tokens of a prefix hit whose rows of the target it goes on from, and nobody has kept."""

    def read(self, threads: Threads, progress: Progress, ranks: Ranks | None = None) -> NewProposer:
        """Read the weights. Raises LoadError where checkpoint and configuration disagree.

        ranks  with whom the target is shared
        """

    def on_device(self, state: SlotState, sampler: Sampler, token_budget: int) -> DeviceProposer:
        """What guesses on an accelerator, over these slots, in steps of so many tokens of the target.

        Raises LoadError where it does not guess there.
        """

    def read_on_device(self, device: torch.device, target: AnyDecoder) -> Guesser:
        """Read the weights of what `on_device` gave, beside the target's. Raises LoadError where checkpoint
        and configuration disagree."""

    def opened_again(self, progress: Progress) -> DraftPlan:
        """The same plan over its files as they are now. Raises LoadError where they have gone."""


class TokenProposer(ABC):
    """A proposer to whom a request's tokens say all.

    It looks when a step is about to verify drafts, so that who pauses them pays nothing. Masks are made ahead
    of the step, for drafts, too: within masks it looks behind each draw.
    """

    def __init__(self) -> None:
        self._masked: set[int] = set()
        """Slots whose draws come with masks."""

    @abstractmethod
    def propose(self, tokens: Ints) -> Ints:
        """Drafts for what follows these tokens [known], in order; none where nothing suggests itself."""

    def start(self, slots: Slots, start: SlotStart) -> None:
        (self._masked.add if start.masked else self._masked.discard)(start.slot)

    def precede(self, slots: Slots, plan: StepPlan) -> None:
        for index, most in enumerate(plan.num_drafts):
            if most and index not in plan.drafts and (slot := plan.slots[index]) not in self._masked:
                slots.guess(slot, self.propose(slots.known(slot)))

    def follow(self, slots: Slots, plan: StepPlan, result: StepResult) -> None:
        if not self._masked:
            return
        for slot, drawn in zip(plan.slots, result.requests["num_drawn"].tolist(), strict=True):
            if drawn and slot in self._masked:
                slots.guess(slot, self.propose(slots.known(slot)))


class NgramProposer(TokenProposer):
    """Prompt lookup: where the last tokens stood before, they may go on as they did there.

    Takes the longest n-gram at the end, of `min_n` to `max_n` tokens, that also stands before; of several
    such places the first, as vLLM does: the prompt rather than what the model made of it. It compares the
    last token with all, and longer n-grams only where the shorter one matched.
    Source: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding.
    """

    def __init__(self, num_drafts: int, min_n: int, max_n: int) -> None:
        super().__init__()
        self._num_drafts = num_drafts
        self._min_n = min_n
        self._max_n = max_n

    def propose(self, tokens: Ints) -> Ints:
        n = 1
        ends = np.flatnonzero(tokens[:-1] == tokens[-1])  # of the last n tokens, where they stood before
        while n < self._max_n and len(ends):
            longer = ends[ends >= n]
            longer = longer[tokens[longer - n] == tokens[-1 - n]]
            if not len(longer):
                break
            ends, n = longer, n + 1
        if n < self._min_n or not len(ends):
            return tokens[:0]
        return tokens[ends[0] + 1 :][: self._num_drafts]
