"""The worker on a CPU: plans come in, one call computes the step, outputs go out."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from slipway.dist.channel import ALONE, Neighbours
from slipway.dist.hosts import meeting
from slipway.dist.mesh import Mesh
from slipway.engine.config import EngineConfig
from slipway.engine.messages import AdapterRef, Part, TokenLogprobs
from slipway.engine.plan import Masks, SlotStart, StepOutput, StepPlan
from slipway.load.progress import Progress
from slipway.machine import whole_memory
from slipway.worker.adapters import AdapterPlaces
from slipway.worker.cache_size import CPU_MORE, CacheMemory, host_share, token_budget
from slipway.worker.dropped import free_dropped
from slipway.worker.in_turn import InTurn
from slipway.worker.placement import placement
from slipway.worker.plan import ModelPlan
from slipway.worker.pool import Pooler, enter
from slipway.worker.processors import Processors
from slipway.worker.proposer import NewProposer, NgramProposer, Proposer
from slipway.worker.route import Model, NewModel
from slipway_kernels.cpu import (
    PageMemory,
    Ranks,
    Slots,
    StepResult,
    Threads,
    packed,
    reserved,
    shared_memory,
)

if TYPE_CHECKING:
    from slipway.dist.gloo import Meeting

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

    plan: ModelPlan
    proposer: Proposer | None
    _make: NewModel
    _make_proposer: NewProposer | None
    _model: Model
    _adapters: AdapterPlaces | None

    def __init__(
        self,
        plan: ModelPlan,
        config: EngineConfig,
        progress: Progress,
        memory: int | None = None,
        neighbours: Neighbours = ALONE,
    ) -> None:
        """Reads the weights. Raises LoadError where checkpoint and configuration disagree.

        memory      the descriptor of what the ranks of its stage share, where there are several
        neighbours  the stages before and behind its own
        """
        super().__init__()
        self._neighbours = neighbours
        self._config = config
        self._placement = placement(config)
        self.num_threads = self._placement.threads
        self.ranks: Ranks | None = None
        self._meeting: Meeting | None = None
        mesh = Mesh.of(config)
        if memory is not None and mesh.tp > 1:
            self._join(mesh, memory)
        self._progress = progress
        self._read(plan)
        self._dropped = False
        """The weights have gone; `wake` reads them again."""
        self._kv_divisors = plan.kv_divisors  # until the first step has found the scales
        draws = plan.draws and (self.ranks is None or self.ranks.rank == 0)
        self._pooler = plan.pooler if draws else None
        self._processors = Processors(config.processor_threads) if config.processors and draws else None
        self._starts: dict[int, SlotStart] = {}
        """By slot, what its request wants to know."""

    def profile(self) -> CacheMemory:
        """A quarter of the memory that the weights of all engines leave, in equal parts."""
        parts = self._config.machine_parts
        # What transformers' code leaves in torch is not packed.
        weights = self._held if self.plan.route.native else max(self.plan.stored_bytes, self._held)
        share = host_share(whole_memory(), parts * weights, parts)
        return CacheMemory(share, self.plan.kv.page_bytes, CPU_MORE)

    def allocate(self, num_pages: int) -> int:
        if self._meeting is not None:
            self._meeting.connect()
        config, kv, length = self._config, self.plan.kv, self.plan.length_in(num_pages)
        self.token_budget = token_budget(config, length, TOKEN_BUDGET)
        self.slots = Slots(config.max_num_seqs, length, len(kv.groups), kv.max_blocks(length))
        if config.acceptance is not None:
            self.slots.accept_typically(config.acceptance.threshold, config.acceptance.alpha)
        self._pages = PageMemory(num_pages, kv.page_bytes)
        self._build()
        return num_pages

    def warm_up(self) -> None:
        """Nothing: the first step takes at most a millisecond longer than the next."""

    def idle(self) -> bool:
        return self._pages.touch_ahead()

    def sleep(self, *, keep_weights: bool) -> None:
        self._pages.release()
        if keep_weights or self._dropped:
            return
        # Those that a step has found are kept: no other step would find the same.
        places = {layer: self.plan.kv.layer_place[layer] for layer in self.plan.kv_scales}
        scales = {layer: self._model.kv_scale(place) for layer, place in places.items()}
        self.plan = replace(self.plan, kv_scales=scales)
        del self._make, self._make_proposer, self._model, self._adapters, self.proposer
        self._dropped = True
        free_dropped()
        if self.ranks is not None:
            self.ranks.give_back()

    def wake(self, part: Part) -> None:
        """Pages take memory again as they are touched."""
        if part == "kv_cache" or not self._dropped:
            return
        with reserved(self._held):
            plan = self.plan.opened_again(self._config, self._progress)
            with closing(plan):
                self._read(plan)
                self._build()
        self._dropped = False

    def leave(self) -> None:
        if self.ranks is not None:
            self.ranks.leave()
        if self._meeting is not None:
            self._meeting.leave()
        self._neighbours.leave()

    def close(self) -> None:
        if self._meeting is not None:
            self._meeting.close()
        vars(self).clear()

    def read_adapter(self, adapter: AdapterRef, place: int) -> int:
        """Make an adapter ready for a place, in any thread; the tokens that it adds.

        Raises LoadError where it cannot be served.
        """
        assert self._adapters is not None, "requests name no adapters where none are served"
        return self._adapters.read(adapter, place)

    def step(self, plan: StepPlan, masks: Masks | None = None) -> StepOutput:
        for drawn in () if self.plan.draws else plan.drawn:
            self.slots.advance(drawn.slots, drawn.tokens)
            for slot, guesses in zip(drawn.slots, drawn.drafts, strict=True):
                if guesses:
                    self.slots.guess(slot, guesses)
        for change in plan.adapters:
            assert self._adapters is not None, "plans name no adapters where none are served"
            self._adapters.put(change.place, change.adapter)
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
        verified = {}
        if self.proposer is not None:
            self.proposer.precede(self.slots, plan)
            verified = self._verified(plan) if self.plan.draws else {}
        slots, num_new, num_drafts = np.array((plan.slots, plan.num_new, plan.num_drafts), np.int32)
        taken = self._neighbours.take(self._model)
        begun = time.monotonic()
        edits = self._processors.edits(plan, self.slots) if self._processors is not None else None
        result = self._model.step(slots, num_new, num_drafts, masks, edits)
        took = time.monotonic() - begun
        self._neighbours.give(self._model, len(result.rows), taken)
        if not self.plan.draws:
            return StepOutput(result.tokens, [])
        output = self._output(plan, result)
        if self._processors is not None:
            output.errors = self._processors.errors
        if self._pooler is not None:
            self._pool(self._pooler, plan, result, output)
        if self._config.timed:
            output.forward_seconds = took
        if self.proposer is not None:
            output.verified = verified
            begun = time.monotonic()
            self.proposer.follow(self.slots, plan, result)
            output.proposing_seconds = time.monotonic() - begun
            self._report_drafts(plan, output)
        return output

    def _join(self, mesh: Mesh, memory: int) -> None:
        """The ranks of its stage, in memory that they share or by torch where they are on several hosts."""
        place, threads = mesh.shard(self._config.rank), self.num_threads * mesh.tp
        self._meeting = meeting(self._config)
        if self._meeting is None:
            self.ranks = Ranks(place.rank, place.size, threads, memory)
            return
        alone = shared_memory()
        self.ranks = Ranks(place.rank, place.size, threads, alone, self._meeting.exchange)
        os.close(alone)

    def _read(self, plan: ModelPlan) -> None:
        """Read the weights of the model, and of what guesses for it."""
        threads = Threads(self.num_threads, self._placement.cpus)
        draft = plan.draft if plan.draws else None
        with packed() as weights:
            make = plan.read(threads, self._progress, self.ranks)
            self._make_proposer = draft.read(threads, self._progress, self.ranks) if draft else None
        self.plan, self._make = plan, make
        self._held = sum(weight.nbytes for weight in weights)

    def _build(self) -> None:
        """Make both, over the slots and the pages."""
        config = self._config
        self._model, self._adapters = self._make(
            self.slots, self._pages, self.token_budget, config.max_logprobs
        )
        self.proposer = None
        if self._make_proposer is not None:
            self.proposer = self._make_proposer(self.slots, self._pages, self.token_budget, self._model)
        elif config.num_drafts and self.plan.draft is None and self.plan.pooler is None:
            self.proposer = NgramProposer(
                config.num_drafts, config.prompt_lookup_min, config.prompt_lookup_max
            )

    def _start(self, start: SlotStart) -> None:
        params, pooler = start.params, self._pooler
        self.slots.pooled[start.slot] = start.pooling is not None
        if pooler is not None and start.pooling is not None and self.plan.draws:
            pooler.start(start.slot, start.pooling)
        type_from = None if start.pooling is None else start.pooling.type_from
        self.slots.start(start.slot, start.tokens, start.num_prompt, start.num_computed, type_from)
        self.slots.adapter[start.slot] = start.adapter
        if start.given:
            self.slots.give(start.slot, start.given, len(start.given) // (4 * self.plan.hidden_size))
        self.slots.set_sampling(start.slot, params, start.prompt_logprobs_from)
        if self._processors is not None:
            self._processors.start(start.slot, params.processors)
        if self.proposer is not None:
            self.proposer.start(self.slots, start)
        self._starts[start.slot] = msgspec.structs.replace(start, tokens=[], given=b"")

    def _verified(self, plan: StepPlan) -> dict[int, int]:
        """By index, drafts of the proposer that a step verifies."""
        return {
            index: count
            for index, most in enumerate(plan.num_drafts)
            if most and index not in plan.drafts
            if (count := min(most, int(self.slots.num_drafts[plan.slots[index]])))
        }

    def _report_drafts(self, plan: StepPlan, output: StepOutput) -> None:
        """Those within masks, which are made for the rows behind them; all where stages before want them."""
        staged = self.plan.route.stage is not None
        for index, slot in enumerate(plan.slots):
            if (staged or self._starts[slot].masked) and output.tokens[index] and self.slots.num_drafts[slot]:
                output.drafts[index] = self.slots.drafts(slot).tolist()

    def _pool(self, pooler: Pooler, plan: StepPlan, result: StepResult, output: StepOutput) -> None:
        """Enter what prompts that end here are pooled to."""
        for index, (slot, advance) in enumerate(zip(plan.slots, result.requests.tolist(), strict=True)):
            first, end, *_ = advance
            computed = int(self.slots.num_computed[slot])
            begin, ends = computed - (end - first), computed == self.slots.num_tokens[slot]
            wanted = pooler.wanted(begin, self.slots.tokens[slot, begin:computed], ends=ends)
            pooled = pooler.take(slot, result.hidden[first:end][wanted], ends=ends)
            if pooled is not None:
                enter(output, index, pooled)

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
