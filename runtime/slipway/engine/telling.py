"""What the last pipeline stage has drawn, until the stages before it are told."""

from __future__ import annotations

from collections import deque

import msgspec

from slipway.engine.plan import Drawn, StepOutput, StepPlan


class Telling:
    """Goes with the plans: those of steps under way in the order of their launches.

    A slot may change hands while a step under way still draws for the request that had it: of that nobody is
    told, for the next plan's start is what its stage has by then.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[int, StepPlan]] = deque()
        """Steps by their number."""
        self._launched = 0
        self._started: dict[int, int] = {}
        """By slot, the number of the step that last started it."""
        self._drawn: list[Drawn] = []

    def launched(self, plan: StepPlan) -> StepPlan:
        """A step's plan, with what has not been told yet."""
        self._under_way.append((self._launched, plan))
        self._started.update((start.slot, self._launched) for start in plan.starts)
        self._launched += 1
        drawn, self._drawn = self._drawn, []
        return msgspec.structs.replace(plan, drawn=drawn) if drawn else plan

    def collected(self, output: StepOutput) -> None:
        """What the oldest step under way has made."""
        number, plan = self._under_way.popleft()
        drawn = Drawn([], [], [])
        for index, (slot, tokens) in enumerate(zip(plan.slots, output.tokens, strict=True)):
            if tokens and self._started[slot] <= number:
                drawn.slots.append(slot)
                drawn.tokens.append(tokens)
                drawn.drafts.append(output.drafts.get(index, []))
        if drawn.slots:
            self._drawn.append(drawn)
