"""The worker on a CPU: plans come in, one call computes the step, outputs go out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slipway.engine.messages import TokenLogprobs
from slipway.engine.params import SamplingParams
from slipway.engine.plan import PageGrant, SlotStart, StepOutput, StepPlan
from slipway.worker.in_turn import InTurn
from slipway.worker.plan import ModelPlan
from slipway_kernels.cpu import PageMemory, Slots, StepResult


class CpuWorker(InTurn):
    """Keeps the requests' state in fixed slots and runs the lowered model over them.

    The plan carries differences only; the step itself reads token ids, positions and block tables from
    the slots, draws where a slot has caught up, and appends what it drew.
    """

    def __init__(
        self,
        plan: ModelPlan,
        *,
        num_slots: int,
        max_len: int,
        num_pages: int,
        token_budget: int,
        max_logprobs: int,
        threads: int,
        progress: Callable[[str, int, int], None],
    ) -> None:
        super().__init__()
        max_blocks = -(-max_len // plan.kv.block_size)
        self.slots = Slots(num_slots, max_len, len(plan.kv.groups), max_blocks)
        self._pages = PageMemory(num_pages, plan.kv.page_bytes)
        self._model = plan.build(
            self.slots,
            self._pages,
            max_tokens=token_budget,
            max_top=max(1, max_logprobs),
            threads=threads,
            progress=progress,
        )
        self._kv_divisors = plan.kv_divisors  # until the first step has found the scales
        self._wants: list[tuple[int, int]] = [(-1, -1)] * num_slots
        """[slot]  alternatives wanted with each output token and each prompt token"""

    def warm_up(self) -> None:
        """Compute one token in slot 0, so that the first request finds pages mapped and caches warm.

        It is no request's: scales of keys and values are not found in it.
        """
        divisors, self._kv_divisors = self._kv_divisors, None
        params = SamplingParams(1, temperature=0.0)
        pages = [PageGrant(group, 0, 0, [group]) for group in range(len(self.slots.block_table))]
        self.step(StepPlan([SlotStart(0, [0], 1, 0, params, 1)], pages, [0], [1], [0], [True], [1]))
        self._kv_divisors = divisors

    def idle(self) -> bool:
        """Something useful while nothing runs, a few milliseconds of it; False where there is no more."""
        return self._pages.touch_ahead()

    def step(self, plan: StepPlan) -> StepOutput:
        for start in plan.starts:
            self._start(start)
        for grant in plan.pages:
            self._pages.use(grant.pages)
            end = grant.start + len(grant.pages)
            self.slots.block_table[grant.group, grant.slot, grant.start : end] = grant.pages
        if not plan.slots:
            return StepOutput([], [])
        if self._kv_divisors is not None:
            self._model.find_kv_scales(*self._kv_divisors)
            self._kv_divisors = None
        result = self._model.step(np.array(plan.slots, np.int32), np.array(plan.num_new, np.int32))
        return self._output(plan, result)

    def _start(self, start: SlotStart) -> None:
        slots, slot, length = self.slots, start.slot, len(start.tokens)
        slots.tokens[slot, :length] = start.tokens
        slots.num_tokens[slot] = length
        slots.num_computed[slot] = start.num_computed
        slots.prompt_len[slot] = start.num_prompt
        slots.set_sampling(slot, start.params, start.prompt_logprobs_from)
        self._wants[slot] = (start.params.num_logprobs, start.params.num_prompt_logprobs)

    def _output(self, plan: StepPlan, result: StepResult) -> StepOutput:
        drawn, prompt = result.drawn, result.prompt
        tokens = [[token] if token >= 0 else [] for token in drawn["token"].tolist()]
        output = StepOutput(tokens, np.flatnonzero(drawn["failed"]).tolist())
        row = 0
        for index, (slot, num_new) in enumerate(zip(plan.slots, plan.num_new, strict=True)):
            wanted, wanted_prompt = self._wants[slot]
            if wanted >= 0 and tokens[index]:
                tops = result.top_ids[index], result.top_logprobs[index]
                output.logprobs[index] = [_token_logprobs(drawn[index], *tops, wanted)]
            if wanted_prompt >= 0:
                known = [
                    _token_logprobs(
                        prompt[r], result.prompt_top_ids[r], result.prompt_top_logprobs[r], wanted_prompt
                    )
                    for r in range(row, row + num_new)
                    if prompt[r]["token"] >= 0
                ]
                if known:
                    output.prompt_logprobs[index] = known
            row += num_new
        return output


def _token_logprobs(
    drawn: np.void, ids: NDArray[np.int32], values: NDArray[np.float32], wanted: int
) -> TokenLogprobs:
    """ids, values [max_top]: the most likely tokens, best first."""
    top = list(zip(ids[:wanted].tolist(), values[:wanted].tolist(), strict=True))
    return TokenLogprobs(float(drawn["logprob"]), int(drawn["rank"]), top)
