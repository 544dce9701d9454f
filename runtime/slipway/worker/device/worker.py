"""The worker on a device: plans come in, steps are launched ahead of their results, outputs follow."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from slipway.engine.plan import Masks, SlotStart, StepOutput, StepPlan
from slipway.load.progress import Progress
from slipway.load.torch_arrays import torch_type
from slipway.worker.cache_size import CacheMemory
from slipway.worker.device.batch import Batch, StepShape, batch_arrays, nobody
from slipway.worker.device.graphs import EARLY, PATIENCE, GraphKey, Graphs, GraphSizes
from slipway.worker.device.memory import GRAPH_BYTES, Budget, allocated_within, measured
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.results import Launched, Pending, Results, Timer
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState
from slipway.worker.device.swap import SwapSpace
from slipway.worker.plan import ModelPlan
from slipway_kernels.sampling import MASKED, Features
from slipway_kernels.sampling.device import Draws
from slipway_kernels.slots import finish, prepare

log = logging.getLogger("slipway.engine")

REPORTED_AT_ONCE = 256
"""Rows of logits that prompt log-probabilities take at a time."""
UNTIMED = nullcontext()


class AnyDecoder(Protocol):
    """The model on the device: our code's `Decoder`, or transformers'."""

    graphs: bool
    """Whether steps can be captured in CUDA graphs."""

    def use(self, pages: DevicePages) -> None:
        """Keep keys and values in these pages from now on."""

    def hidden(self, batch: Batch) -> Tensor:
        """[rows, hidden], of which `logits` makes logits."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden] → [rows, vocab]"""


class DeviceWorker:
    """Keeps requests in slots on the device and runs the decoder over them.

    A step is launched without waiting: its tokens are drawn and appended on the device, so that the next one
    can be launched before they reach the host. `collect` waits for them. Forward pass and draw are graphs of
    their own: new ways to draw capture no forward pass again.
    """

    runs_ahead = True
    takes_drafts = False
    repeats_bits = False  # products of other sizes add in another order

    def __init__(
        self,
        plan: ModelPlan,
        state: SlotState,
        sampler: Sampler,
        decoder: AnyDecoder,
        swap: SwapSpace,
        graph_sizes: Iterable[int],
        *,
        graph_lengths: Iterable[int],
        token_budget: int,
        progress: Progress,
        budget: Callable[[int, int, int], Budget],
        timed: bool = False,
    ) -> None:
        """graph_lengths: of the longest context. budget: of weights, activations and graphs, in bytes. timed:
        outputs tell what the forward pass took."""
        self.plan = plan
        self._state = state
        self._sampler = sampler
        self._decoder = decoder
        self._swap = swap
        self.token_budget = token_budget
        self.num_host_pages = swap.num_pages
        self._budget = budget
        self.most_requests = min(state.num_slots, token_budget)
        """Of one step: no fixed tensor has room for more."""
        self.graph_sizes = GraphSizes(
            graph_sizes, self.most_requests, graph_lengths, token_budget, state.most_drafts
        )
        self._progress = progress
        self._timed = timed
        self._kv_divisors = plan.kv_divisors  # until the first step has found the scales
        self.graphs = Graphs()
        self._missed: Counter[GraphKey] = Counter()
        """Graphs that steps would have used, and how many of them."""
        self._launched: Launched | None = None
        self._under_way: deque[Pending | None] = deque()
        self._logits = torch.empty(0, 0)
        """[rows of the largest graph, vocab]  what a captured forward pass leaves to a captured draw; in no
        graph's pool, where the draw's own memory may lie over it"""
        self._results = Results(state.num_slots, state.most_drafts, sampler.max_top, state.device)

    def profile(self) -> CacheMemory:
        """What weights, the largest step and graphs leave, measured with slots of one position and a page."""
        plan, state = self.plan, self._state
        state.allocate(1)
        self._use_pages(1)
        weights, activations = measured(state.device, self.largest_step)
        graphs = GRAPH_BYTES * len(self.graph_sizes.sizes) * len(self.graph_sizes.each)
        budget = self._budget(weights, activations, graphs)
        log.info("%s", budget.explained())
        return CacheMemory(
            budget.kv_cache, plan.kv.page_bytes, "--gpu-memory-utilization", state.position_bytes
        )

    def allocate(self, num_pages: int) -> int:
        self._state.allocate(self.plan.length_in(num_pages))
        return allocated_within(num_pages, self._use_pages)

    def close(self) -> None:
        vars(self).clear()
        torch.cuda.empty_cache()

    def _use_pages(self, count: int) -> None:
        plan, dtype, device = self.plan, torch_type(self.plan.kv_dtype), self._state.device
        self._pages = DevicePages(plan.kv, count, dtype, device, plan.kv_scales)
        self._decoder.use(self._pages)

    def warm_up(self) -> None:
        """Capture the first graphs; `largest_step` has run, so that workspaces have their last addresses."""
        keys = [key for key in self.graph_sizes.planned() if key.size <= EARLY]
        for done, key in enumerate(keys):
            self._progress("warmup", done, len(keys))
            self._capture(key)

    def largest_step(self) -> None:
        """Compute, draw and report as much as a step can, all of it padding.

        Loads the kernels and has shared workspaces grow to what any step needs: graphs know their addresses.
        """
        rows, requests = self.token_budget, self.most_requests
        shape = nobody(requests, rows - requests + 1, rows, 1 + self._state.most_drafts)
        # Padding sets no scales; but what finds them is loaded, and the memory that it takes measured.
        batch = replace(self._sent(shape, rows, requests), kv_divisors=self._kv_divisors)
        hidden, logits = self._forward(batch)
        self._draw(batch, logits, self._sampler.every_feature)
        self._report(batch, hidden, [(0, 0, 0, 0)] * min(REPORTED_AT_ONCE, rows))
        self._reserve(logits)
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)

    @torch.inference_mode()
    def idle(self) -> bool:
        """Capture a graph that is missing, those that steps have missed before others; False: none is."""
        if self._capture_missed(1):
            return True
        key = next((key for key in self.graph_sizes.planned() if key not in self.graphs), None)
        return key is not None and self._capture(key)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Give the device a step's forward pass. Raises ValueError where the plan contradicts itself."""
        self._swap.follow(plan, self._pages)
        for start in plan.starts:
            self._start(start)
        for grant in plan.pages:
            self._state.arena.put("tables", grant.pages, grant.group, grant.slot, grant.start)
        shape = StepShape.of(plan)
        if not shape.num_requests:
            self._state.arena.send()
            return
        features = self._sampler.features(shape.slots[shape.draws])
        known = self._results.prompt_positions(shape)
        divisors, self._kv_divisors = self._kv_divisors, None
        key = None if known or divisors else self.graph_sizes.key_for(shape)
        self._capture_missed(PATIENCE)
        timer = Timer(self._state.device) if self._timed else None
        if key is not None and self._has(key):
            rows = key.size * key.each
            batch = self._sent(shape, rows, key.size)
            with timer or UNTIMED:
                self.graphs.replay(key)
            logits = self._logits[:rows]
            self._launched = Launched(shape, batch, logits, features, known, graph=key, timer=timer)
            return
        batch = replace(self._sent(shape, shape.num_tokens, shape.num_requests), kv_divisors=divisors)
        with timer or UNTIMED:
            hidden, logits = self._forward(batch)
        prompt = self._report_prompt(batch, shape, known, hidden) if known else None
        self._launched = Launched(shape, batch, logits, features, known, prompt, timer=timer)

    @torch.inference_mode()
    def draw(self, masks: Masks | None = None) -> None:
        """Give the device the draw of the step launched last, and the copies of what comes of it."""
        step, self._launched = self._launched, None
        if step is None:
            self._under_way.append(None)
            return
        shape, features = step.shape, step.features
        if masks:
            features |= MASKED
            places = enumerate(shape.order.tolist())
            rows = {place * shape.each: masks[index] for place, index in places if index in masks}
            self._sampler.mask(len(step.logits), rows)
        key = step.graph and GraphKey(step.graph.size, step.graph.each, features=features)
        if key is not None and self._has(key):
            self.graphs.replay(key)
        else:
            self._draw(step.batch, step.logits, features)
        counts, slots = (part[: shape.num_requests] for part in (self._state.counts, step.batch.slots))
        self._under_way.append(self._results.copied(step, counts, partial(self._proposed, slots)))

    def collect(self) -> StepOutput:
        """Wait for the tokens of the oldest step under way."""
        pending = self._under_way.popleft()
        return StepOutput([], []) if pending is None else self._results.output(pending)

    def _has(self, key: GraphKey) -> bool:
        """Whether there is this graph; where not, it is noted as missed."""
        if key not in self.graphs and not self.graphs.full:
            self._missed[key] += 1
        return key in self.graphs

    def _capture_missed(self, least: int) -> bool:
        """Capture the graph that most steps have missed, where so many have; whether there is one more."""
        for key, missed in self._missed.most_common(1):
            if missed >= least:
                del self._missed[key]
                return self._capture(key)
        return False

    def _capture(self, key: GraphKey) -> bool:
        """Whether there is this graph now: no other step may be between its forward pass and its draw."""
        if self.graphs.full:
            return False
        shape = nobody(key.size, key.each, key.max_length, key.each)
        batch = self._sent(shape, key.size * key.each, key.size)
        self._prepare(batch)
        logits = self._logits[: key.size * key.each]
        draw = None if key.features is None else partial(self._draw, batch, logits, key.features)
        self.graphs.capture(key, draw or partial(self._forward_to_draw, batch))
        return key in self.graphs

    def _prepare(self, batch: Batch) -> None:
        """From slots to the step's rows."""
        state = self._state
        prepare(
            slots=batch.slots,
            row_start=state.row_start[: len(batch.query_start)],
            draws=state.draws[: len(batch.slots)],
            tokens=state.tokens,
            num_computed=state.num_computed,
            num_drafts=state.num_drafts,
            token_ids=batch.token_ids,
            positions=batch.positions,
            row_slots=batch.row_slots,
            query_start=batch.query_start,
            lengths=batch.lengths,
            draw_rows=batch.draw_rows,
            draw_slots=batch.draw_slots,
            draw_lengths=batch.draw_lengths,
        )

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """From slots to hidden states [rows, hidden], and the logits drawn from [requests · each, vocab]."""
        self._prepare(batch)
        hidden = self._decoder.hidden(batch)
        return hidden, self._decoder.logits(hidden.index_select(0, batch.draw_rows.flatten()))

    def _forward_to_draw(self, batch: Batch) -> None:
        """The forward pass of a graph: its logits lie where the graph that draws reads them."""
        _, logits = self._forward(batch)
        self._reserve(logits)
        self._logits[: len(logits)].copy_(logits)

    def _reserve(self, logits: Tensor) -> None:
        """Make the place where graphs leave logits like these."""
        largest = self.graph_sizes.largest_rows
        if len(self._logits) < largest:
            self._logits = logits.new_empty(largest, logits.shape[1])

    def _draw(self, batch: Batch, logits: Tensor, features: Features) -> None:
        """From logits [requests · each, vocab] to the slots' new tokens and lengths."""
        state, requests = self._state, len(batch.slots)
        drawn = self._results.drawn(len(logits))
        self._sampler.draw(logits, batch, features, drawn)
        finish(
            slots=batch.slots,
            query_start=batch.query_start,
            drawn=drawn.token.view(requests, -1),
            counts=state.counts[:requests],
            tokens=state.tokens,
            num_tokens=state.num_tokens,
            num_computed=state.num_computed,
            num_drafts=state.num_drafts,
        )

    def _proposed(self, slots: Tensor) -> Tensor:
        """The drafts that these slots verify next: [requests, most_drafts], -1 behind them."""
        state, of = self._state, slots.long()[:, None]
        number = torch.arange(state.most_drafts, device=state.device)
        at = (state.num_tokens[of] + number).clamp(max=state.tokens.shape[1] - 1)
        return state.tokens[of, at].masked_fill(number >= state.num_drafts[of], -1)

    def _report_prompt(
        self, batch: Batch, shape: StepShape, known: list[tuple[int, range]], hidden: Tensor
    ) -> Draws:
        """Log-probabilities of the prompt's tokens at these positions, each from the row before it."""
        slots, first = shape.slots.tolist(), shape.first.tolist()
        tokens = [
            (place, position - first[place] - 1, slots[place], position)
            for place, positions in known
            for position in positions
        ]
        return self._report(batch, hidden, tokens)

    def _report(self, batch: Batch, hidden: Tensor, tokens: list[tuple[int, int, int, int]]) -> Draws:
        """What the model thought of known tokens: each is told by its request's place in the batch, which of
        the request's rows is before it, its slot and its position.

        hidden  [rows, hidden]
        """
        device = self._state.device
        index = torch.tensor(tokens, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        places, before, slots, positions = index.unbind(1)
        rows = batch.query_start[places] + before
        given = self._state.tokens[slots, positions]
        result = Draws.empty(len(tokens), self._results.max_top, device)
        for begin in range(0, len(tokens), REPORTED_AT_ONCE):
            part = slice(begin, begin + REPORTED_AT_ONCE)
            self._sampler.report(self._decoder.logits(hidden[rows[part]]), given[part], result[part])
        return result

    def _start(self, start: SlotStart) -> None:
        put, slot = self._state.arena.put, start.slot
        put("tokens", start.tokens, slot)
        put("num_tokens", [len(start.tokens)], slot)
        put("num_computed", [start.num_computed], slot)
        put("num_drafts", [0], slot)
        put("prompt_len", [start.num_prompt], slot)
        self._sampler.start(slot, start.params)
        self._results.start(start)

    def _sent(self, shape: StepShape, num_rows: int, num_requests: int) -> Batch:
        """All that has changed, and which requests the step is of, goes to the device.

        What comes back are views of the fixed tensors, of these sizes.
        """
        for name, values in batch_arrays(shape, num_requests).items():
            self._state.arena.put(name, values)
        self._state.arena.send()
        state, draws = self._state, (num_requests, shape.each)
        num_draws = num_requests * shape.each
        return Batch(
            token_ids=state.token_ids[:num_rows],
            positions=state.positions[:num_rows],
            row_slots=state.row_slots[:num_rows],
            slots=state.slots[:num_requests],
            query_start=state.query_start[: num_requests + 1],
            lengths=state.lengths[:num_requests],
            draw_rows=state.draw_rows[:num_draws].view(draws),
            draw_slots=state.draw_slots[:num_draws].view(draws),
            draw_lengths=state.draw_lengths[:num_draws].view(draws),
            tables=state.tables,
            num_decodes=shape.num_decodes,
            max_query=shape.max_query,
            max_length=shape.max_length,
        )
