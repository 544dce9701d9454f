"""The worker of a pipeline stage before another: what its rows become is told with later plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from slipway.engine.plan import Drawn, Masks, SlotStart, StepPlan
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.row_worker import RowWorker
from slipway_kernels.sampling import Features


class StageWorker(RowWorker):
    """A request is in one step at a time: what that drew has been told before the next one."""

    def __init__(self, *args: Any, **named: Any) -> None:
        """As of its base."""
        super().__init__(*args, **named)
        self._known = np.zeros(self._state.num_slots, np.int32)
        """[num_slots]  tokens of each request that are known here"""

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        starting = {start.slot for start in plan.starts}  # they have what was drawn for whoever had the slot
        for drawn in plan.drawn:
            self._enter_drawn(drawn, starting)
        super().launch(plan)

    @torch.inference_mode()
    def draw(self, masks: Masks | None = None) -> None:
        step, self._launched = self._launched, None
        if step is not None:
            self._advance(step.batch)
        self._under_way.append(None)

    def _enter_drawn(self, drawn: Drawn, starting: set[int]) -> None:
        """As `finish` does where tokens are drawn."""
        put, longest = self._state.arena.put, self._state.tokens.shape[1]
        for slot, tokens, drafts in zip(drawn.slots, drawn.tokens, drawn.drafts, strict=True):
            if slot in starting:
                continue
            first = int(self._known[slot])
            self._known[slot] = known = min(first + len(tokens), longest)
            words = [*tokens, *drafts][: longest - first]
            put("tokens", words, slot, first)
            put("num_tokens", [known], slot)
            put("num_computed", [first + len(tokens) - 1], slot)
            put("num_drafts", [max(0, len(words) - len(tokens))], slot)

    def _start(self, start: SlotStart) -> None:
        self._enter(start)
        self._known[start.slot] = len(start.tokens)

    def _asked(self, shape: StepShape) -> tuple[Features, Sequence[tuple[int, range]]]:
        return Features(), []

    def _forward_to_draw(self, batch: Batch) -> None:
        """A graph leaves its rows where the next stage is given them from."""
        self._forward(batch)
