"""Workers whose steps are one call."""

from __future__ import annotations

from abc import ABC, abstractmethod

from slipway.engine.plan import Masks, StepOutput, StepPlan


class InTurn(ABC):
    """A worker that computes a step in one call, when its tokens are asked for."""

    def __init__(self) -> None:
        self._plan: StepPlan | None = None
        self._collected: StepOutput | None = None

    @abstractmethod
    def step(self, plan: StepPlan, masks: Masks | None = None) -> StepOutput:
        """All of a step."""

    def launch(self, plan: StepPlan) -> None:
        self._plan = plan

    def draw(self, masks: Masks | None = None) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None, "draw is called once after each launch"
        self._collected = self.step(plan, masks)

    def collect(self) -> StepOutput:
        output, self._collected = self._collected, None
        assert output is not None, "collect is called once after each draw"
        return output

    def close(self) -> None:
        self._plan = self._collected = None
