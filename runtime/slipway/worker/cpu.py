"""The worker on a CPU: plans come in, one call computes the step, outputs go out."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from slipway.engine.config import EngineConfig
from slipway.engine.messages import TokenLogprobs
from slipway.engine.plan import Masks, SlotStart, StepOutput, StepPlan
from slipway.load.progress import Progress
from slipway.machine import usable_cpus, whole_memory
from slipway.worker.cache_size import CacheMemory, token_budget
from slipway.worker.in_turn import InTurn
from slipway.worker.plan import ModelPlan
from slipway.worker.proposer import NgramProposer
from slipway_kernels.cpu import PageMemory, Slots, StepResult

TOKEN_BUDGET = 256
"""Products reach full rate from M = 128 on; a longer step only delays running streams."""


class CpuWorker(InTurn):
    """Keeps the requests' state in fixed slots and runs the lowered model over them.

    The plan carries differences only; the step itself reads token ids, positions and block tables from
    the slots, draws where a slot has caught up, and appends what it drew.
    """

    runs_ahead = False  # a step takes every core
    takes_drafts = True
    repeats_bits = True
    num_host_pages = 0

    def __init__(self, plan: ModelPlan, config: EngineConfig, progress: Progress) -> None:
        """Reads the weights. Raises LoadError where checkpoint and configuration disagree."""
        super().__init__()
        self.plan = plan
        self._make = plan.read(config.threads or usable_cpus(), progress)
        self._config = config
        self._kv_divisors = plan.kv_divisors  # until the first step has found the scales
        guesses = config.num_drafts, config.prompt_lookup_min, config.prompt_lookup_max
        self.proposer = NgramProposer(*guesses) if config.num_drafts else None
        self._starts: dict[int, SlotStart] = {}
        """By slot, what its request wants to know."""

    def profile(self) -> CacheMemory:
        """A quarter of the memory that the weights leave."""
        left = max(0, whole_memory() - self.plan.checkpoint.total_bytes)
        return CacheMemory(left // 4, self.plan.kv.page_bytes, "VLLM_CPU_KVCACHE_SPACE")

    def allocate(self, num_pages: int) -> int:
        config, kv, length = self._config, self.plan.kv, self.plan.length_in(num_pages)
        self.token_budget = token_budget(config, length, TOKEN_BUDGET)
        self.slots = Slots(config.max_num_seqs, length, len(kv.groups), kv.max_blocks(length))
        self._pages = PageMemory(num_pages, kv.page_bytes)
        self._model = self._make(self.slots, self._pages, self.token_budget, config.max_logprobs)
        return num_pages

    def warm_up(self) -> None:
        """Nothing: the first step takes at most a millisecond longer than the next."""

    def idle(self) -> bool:
        return self._pages.touch_ahead()

    def close(self) -> None:
        vars(self).clear()

    def step(self, plan: StepPlan, masks: Masks | None = None) -> StepOutput:
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
        for index, drafts in plan.drafts.items():
            self.slots.guess(plan.slots[index], drafts)
        slots, num_new, num_drafts = np.array((plan.slots, plan.num_new, plan.num_drafts), np.int32)
        begun = time.monotonic()
        result = self._model.step(slots, num_new, num_drafts, masks)
        took = time.monotonic() - begun
        output = self._output(plan, result)
        if self._config.timed:
            output.forward_seconds = took
        if self.proposer is not None:
            self._propose(self.proposer, plan, output)
        return output

    def _start(self, start: SlotStart) -> None:
        params = start.params
        self.slots.start(start.slot, start.tokens, start.num_prompt, start.num_computed)
        self.slots.adapter[start.slot] = start.adapter
        self.slots.set_sampling(start.slot, params, start.prompt_logprobs_from)
        self._starts[start.slot] = msgspec.structs.replace(start, tokens=[])

    def _propose(self, proposer: NgramProposer, plan: StepPlan, output: StepOutput) -> None:
        """Drafts for the slots that drew."""
        for index, slot in enumerate(plan.slots):
            if output.tokens[index]:
                self.slots.guess(slot, proposer.propose(self.slots.known(slot)))
                if self._starts[slot].masked and self.slots.num_drafts[slot]:
                    output.drafts[index] = self.slots.drafts(slot).tolist()

    def _output(self, plan: StepPlan, result: StepResult) -> StepOutput:
        output = StepOutput(result.tokens, np.flatnonzero(result.requests["failed"]).tolist())
        for index, (first, drawn, count, _) in enumerate(result.requests.tolist()):
            params = self._starts[plan.slots[index]].params
            if params.num_logprobs >= 0 and count:
                output.logprobs[index] = _logprobs(result, range(drawn, drawn + count), params.num_logprobs)
            wanted = params.num_prompt_logprobs
            if wanted >= 0 and (known := _logprobs(result, range(first, drawn), wanted)):
                output.prompt_logprobs[index] = known
        return output


def _logprobs(result: StepResult, rows: range, wanted: int) -> list[TokenLogprobs]:
    """Of the tokens that these rows report, with so many alternatives."""
    found = []
    for row in rows:
        token, _, logprob, rank = result.rows[row].item()
        if token >= 0:
            ids, values = result.top_ids[row, :wanted].tolist(), result.top_logprobs[row, :wanted].tolist()
            found.append(TokenLogprobs(logprob, rank, list(zip(ids, values, strict=True))))
    return found
