"""What guesses the tokens that a slot's next step verifies, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.engine.plan import SlotStart, StepPlan
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.results import Timer
from slipway.worker.device.state import SlotState
from slipway_kernels.ngram import look_up
from slipway_kernels.sampling import Features

if TYPE_CHECKING:
    from slipway.worker.device.guesser import Guesser


class DeviceProposer:
    """Leaves drafts in slots, behind their tokens, where `prepare` of the next step takes them.

    This one leaves none: it says when others are asked.

    guesser  the weights of what guesses, where a model or heads do: given by who reads them
    """

    guesser: Guesser

    def start(self, start: SlotStart) -> None:
        """A request takes a slot in the step that is about to be launched."""

    def launch(self, plan: StepPlan, shape: StepShape) -> None:
        """The step is about to be launched."""

    def follow(self, batch: Batch) -> None:
        """Guess what follows the tokens that the step has drawn and appended; captured with the draw."""

    def guess(self, features: Features, places: int) -> Timer | None:
        """As `follow`, by a model, behind the draw, and drawing as it did; what that takes, if anything.

        places  requests of the step that was drawn, padding between them included
        """

    def largest_step(self) -> None:
        """Guess behind as large a step as there is, all of it padding."""

    def forget(self) -> None:
        """Let go of the weights; who reads them again gives them anew."""


class NgramOnDevice(DeviceProposer):
    """Prompt lookup, the choice of `NgramProposer`, behind every draw.

    What it costs does not depend on who verifies drafts: it reads four bytes a token, where attention reads
    the token's keys and values.
    """

    def __init__(self, state: SlotState, min_n: int, max_n: int) -> None:
        self._state = state
        self._min_n = min_n
        self._max_n = max_n

    def follow(self, batch: Batch) -> None:
        state = self._state
        look_up(
            slots=batch.slots,
            counts=state.counts[: len(batch.slots)],
            tokens=state.tokens,
            num_tokens=state.num_tokens,
            num_drafts=state.num_drafts,
            most=state.most_drafts,
            min_n=self._min_n,
            max_n=self._max_n,
        )
