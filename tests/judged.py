"""An engine on a device whose drafts are counted, by what its worker's outputs tell of them."""

from __future__ import annotations

from typing import Any

from local_engine import LocalEngine
from slipway.engine.plan import Masks, StepOutput, StepPlan


class Judged:
    """The worker of an engine, with the drafts that its steps have accepted and rejected."""

    def __init__(self, engine: LocalEngine) -> None:
        executor: Any = engine.core.executor
        self._worker, executor._worker = executor._worker, self
        self.accepted = self.rejected = 0
        self.proposing = 0.0
        """Seconds."""

    def launch(self, plan: StepPlan) -> None:
        self._worker.launch(plan)

    def draw(self, masks: Masks | None = None) -> None:
        self._worker.draw(masks)

    def collect(self) -> StepOutput:
        output: StepOutput = self._worker.collect()
        self.proposing += output.proposing_seconds
        for index, verified in output.verified.items():
            accepted = max(len(output.tokens[index]) - 1, 0)
            self.accepted += accepted
            self.rejected += verified - accepted
        return output

    def close(self) -> None:
        self._worker.close()
