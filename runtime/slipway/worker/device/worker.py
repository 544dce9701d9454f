"""The worker on a device: plans come in, steps are launched ahead of their results, outputs follow."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from slipway.engine.messages import AdapterRef, Part
from slipway.engine.plan import Masks, SlotStart, StepOutput, StepPlan
from slipway.load.progress import Progress
from slipway.load.torch_arrays import torch_type
from slipway.worker.cache_size import DEVICE_MORE, CacheMemory
from slipway.worker.device.adapters import DeviceAdapters
from slipway.worker.device.any_decoder import AnyDecoder
from slipway.worker.device.batch import Batch, StepShape, batch_arrays, nobody
from slipway.worker.device.budget import GRAPH_BYTES, Budget
from slipway.worker.device.evicted import Evicted
from slipway.worker.device.given import GivenEmbeddings
from slipway.worker.device.graphs import EARLY, PATIENCE, GraphKey, Graphs, GraphSizes
from slipway.worker.device.meeting import Meeting
from slipway.worker.device.memory import allocated_within, measured
from slipway.worker.device.neighbours import Neighbours, OnlyStage
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.processed import ProcessedRows
from slipway.worker.device.products import Move
from slipway.worker.device.prompt_logprobs import REPORTED_AT_ONCE, Known, known_tokens, report
from slipway.worker.device.proposer import DeviceProposer
from slipway.worker.device.ranks import Alone, Ranks
from slipway.worker.device.results import Launched, Pending, Results, Timer
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState
from slipway.worker.device.swap import SwapSpace
from slipway.worker.dropped import free_dropped
from slipway.worker.plan import ModelPlan
from slipway_kernels.sampling import MASKED, Features
from slipway_kernels.sampling.device import Draws
from slipway_kernels.slots import finish

log = logging.getLogger("slipway.engine")

UNTIMED = nullcontext()


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
        read_again: Callable[[], AnyDecoder],
        swap: SwapSpace,
        graph_sizes: Iterable[int],
        *,
        proposer: DeviceProposer,
        given: GivenEmbeddings | None,
        processed: ProcessedRows | None,
        graph_lengths: Iterable[int],
        token_budget: int,
        progress: Progress,
        budget: Callable[[int, int, int], Budget],
        timed: bool = False,
        ranks: Ranks | None = None,
        neighbours: Neighbours | None = None,
        meeting: Meeting | None = None,
        workers: int = 1,
    ) -> None:
        """read_again: the decoder, with its weights. proposer: what guesses. given: None where no request
        comes with embeddings, and processed where none brings processors. graph_lengths: of the longest
        context. budget: of weights, activations and graphs, in bytes. timed: outputs tell what the forward
        pass took. ranks: None where there are no others; neighbours: where there are no other stages;
        meeting: of both, None where there is neither. workers: of this host, with itself."""
        self.plan = plan
        self._ranks = ranks or Alone()
        self._neighbours = neighbours or OnlyStage()
        self._meeting = meeting
        self._workers = workers
        self._state = state
        self._sampler = sampler
        self._decoder, self._adapters = decoder, self._adapters_of(decoder)
        self._proposer = proposer
        self._given, self._processed = given, processed
        self._read_again = read_again
        self._evicted: Evicted | None = None
        """The decoder's weights, while they sleep in host memory."""
        self._dropped = False
        """The decoder has gone; `wake` reads it again."""
        self._has_pages = True
        self._swap = swap
        self.token_budget = token_budget
        self.num_host_pages = swap.num_pages
        self._budget = budget
        self.most_requests = min(state.num_slots, token_budget)
        """Of one step: no fixed tensor has room for more."""
        self.graph_sizes = GraphSizes(
            graph_sizes,
            self.most_requests,
            graph_lengths,
            token_budget,
            state.most_drafts,
            decoder.low_rank.num_places if decoder.low_rank else 0,
            draws=plan.draws,
        )
        self._progress = progress
        self._timed = timed
        self._kv_divisors = plan.kv_divisors  # until the first step has found the scales
        self._bytes_of_graphs = GRAPH_BYTES * len(self.graph_sizes.sizes) * len(self.graph_sizes.each)
        """What is reserved for them."""
        self.graphs = Graphs(self._bytes_of_graphs)
        self._launched: Launched | None = None
        self._under_way: deque[Pending | None] = deque()
        self._logits = torch.empty(0, 0)
        """[rows of the largest graph, vocab and what adapters may add]  what a captured forward pass leaves
        to a captured draw; in no graph's pool, where the draw's own memory may lie over it"""
        staged = plan.route.stage is not None
        self._results = Results(
            state.num_slots, state.most_drafts, sampler.max_top, state.device, staged=staged
        )

    def profile(self) -> CacheMemory:
        """What weights, the largest step and graphs leave, measured with slots of one position and a page."""
        plan, state = self.plan, self._state
        state.allocate(1)
        self._use_pages(1)
        weights, activations = measured(state.device, self.largest_step)
        budget = self._budget(weights, activations, self._bytes_of_graphs)
        log.info("%s", budget.explained())
        return CacheMemory(budget.kv_cache, plan.kv.page_bytes, DEVICE_MORE, state.position_bytes)

    def allocate(self, num_pages: int) -> int:
        self._state.allocate(self.plan.length_in(num_pages))
        allocated = allocated_within(num_pages, self._use_pages)
        if self._meeting is not None:
            self._meeting.wait()
            self.largest_step()  # what sends and receives is loaded, too
        return allocated

    def sleep(self, *, keep_weights: bool) -> None:
        """Graphs go in any case: they hold addresses. Adapters that are kept lie on the host already."""
        if keep_weights and not self._dropped and self._evicted is None:
            self._evicted = Evicted(self._move, self._state.device, self._workers)
            if self._adapters is not None:
                self._adapters.sleep()
        self.forget_graphs()
        self._pages.release()
        self._has_pages = False
        if not keep_weights and not self._dropped:
            del self._decoder
            self._proposer.forget()
            self._adapters, self._evicted, self._dropped = None, None, True
            free_dropped()
        torch.cuda.empty_cache()

    def wake(self, part: Part) -> None:
        if part == "kv_cache" and not self._has_pages:
            self._pages.take()
            self._has_pages = True
        elif part == "weights" and self._dropped:
            self._decoder = self._read_again()
            self._adapters = self._adapters_of(self._decoder)
            self._dropped = False
        elif part == "weights" and self._evicted is not None:
            self._evicted.restore()
            if self._adapters is not None:
                self._adapters.wake()
            self._evicted = None
        if self._has_pages and self._evicted is None and not self._dropped:
            self._decoder.use(self._pages)  # one that was read again does not know them
            self.largest_step()  # workspaces have their last addresses before graphs know them

    def forget_graphs(self) -> None:
        """They are captured again when steps have missed them, or when nothing runs."""
        self.graphs, self._logits = Graphs(self._bytes_of_graphs), torch.empty(0, 0)

    def leave(self) -> None:
        if self._meeting is not None:
            self._meeting.leave()

    def close(self) -> None:
        vars(self).clear()
        torch.cuda.empty_cache()

    def _move(self, to: Move) -> None:
        """Have `to(tensor)` in the place of every weight."""
        self._decoder.move(to)

    def _adapters_of(self, decoder: AnyDecoder) -> DeviceAdapters | None:
        """What keeps those that the decoder's steps have, where it serves some."""
        limits, low_rank = self.plan.adapters, decoder.low_rank
        if limits is None or low_rank is None:
            return None
        return DeviceAdapters(low_rank, self._state, limits.places)

    def _use_pages(self, count: int) -> None:
        plan, dtype, device = self.plan, torch_type(self.plan.kv_dtype), self._state.device
        self._pages = DevicePages(plan.kv, count, dtype, device, plan.kv_scales)
        self._decoder.use(self._pages)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture the first graphs; `largest_step` has run, so that workspaces have their last addresses."""
        keys = [key for key in self.graph_sizes.planned() if key.size <= EARLY]
        for done, key in enumerate(keys):
            self._progress("warmup", done, len(keys))
            self._capture(key)

    @torch.inference_mode()  # as in any step, or what is kept from one to the next could not be changed
    def largest_step(self) -> None:
        """Compute, draw and report as much as a step can, all of it padding.

        Loads the kernels and has shared workspaces grow to what any step needs: graphs know their addresses.
        """
        rows, requests = self.token_budget, self.most_requests
        for adapters in sorted({0, max(self.graph_sizes.adapters)}):
            shape = nobody(requests, rows - requests + 1, rows, 1 + self._state.most_drafts, adapters)
            # Padding sets no scales; but what finds them is loaded, and the memory that it takes measured.
            given = self._given.most(rows) if self._given is not None else None
            batch = replace(self._sent(shape, rows, requests), kv_divisors=self._kv_divisors, given=given)
            hidden, logits = self._forward(batch)
            with self._between_stages(rows):  # of which there is memory now
                self._use_all(batch, hidden, logits)
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)

    @torch.inference_mode()
    def rehearse(
        self,
        shape: StepShape,
        rows: int,
        requests: int,
        draws: Iterable[Features] = (),
        reported: Iterable[int] = (),
    ) -> None:
        """Compute a step of padding, draw from it in each of these ways, and report so many known tokens."""
        batch = self._sent(shape, rows, requests)
        hidden, logits = self._forward(batch)
        for features in draws:
            if features.masked:
                self._sampler.mask(len(logits), {})
            self._draw(batch, logits, features)
        for count in reported:
            self._report(batch, hidden, [(0, 0, 0, 0)] * count)

    def _use_all(self, batch: Batch, hidden: Tensor, logits: Tensor) -> None:
        """Whatever a step may ask of the largest forward pass."""
        edited = logits.to(torch.float32, copy=True) if self._processed is not None else None
        self._draw(batch, logits, self._sampler.every_feature, edited)
        self._report(batch, hidden, [(0, 0, 0, 0)] * min(REPORTED_AT_ONCE, len(hidden)))
        self._proposer.largest_step()
        self._reserve(logits)

    def read_adapter(self, adapter: AdapterRef, place: int) -> int:
        """Make an adapter ready for a place, in any thread; the tokens that it adds. Raises LoadError where
        it cannot be served."""
        assert self._adapters is not None, "requests name no adapters where none are served"
        return self._adapters.read(adapter, place)

    @torch.inference_mode()
    def idle(self) -> bool:
        """Capture a graph that is missing, those that steps have missed before others; False: none is."""
        if self._capture_missed(1):
            return True
        missing = (key for key in self.graph_sizes.planned() if key not in self.graphs)
        key = next(filter(self.graphs.takes, missing), None)
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
        if self._adapters is not None:
            shape = self._adapters.follow(plan, shape)
        if not shape.num_requests:
            self._state.arena.send()
            return
        self._proposer.launch(plan, shape)
        features, known = self._asked(shape)
        divisors, self._kv_divisors = self._kv_divisors, None
        given = self._given.chunks(shape) if self._given is not None else []
        key = None if known or divisors or given else self.graph_sizes.key_for(shape)
        self._capture_missed(PATIENCE)
        replays = key is not None and self.graphs.has(key)
        rows, requests = shape.num_tokens, shape.num_requests
        if key is not None and (replays or self._ranks.several):
            shape, rows, requests = shape.with_decodes(key.decodes), key.rows, key.size
        batch = replace(self._sent(shape, rows, requests), kv_divisors=divisors)
        if self._given is not None and given:
            batch = replace(batch, given=self._given.rows(given))
        timer, prompt = Timer(self._state.device) if self._timed else None, None
        with self._between_stages(shape.num_tokens), timer or UNTIMED:
            if key is not None and replays:
                self.graphs.replay(key)
                logits = self._place_of_logits(key)
            else:
                hidden, logits = self._forward(batch)
        if known:  # and no graph
            prompt = self._report(batch, hidden, known_tokens(shape, known))
        graph = key if replays else None
        self._launched = Launched(shape, batch, logits, features, known, prompt, graph, timer)

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
        edited, errors = self._processed.edited(shape, step.logits) if self._processed else (None, {})
        key = step.graph and step.graph.draw(features)
        if key is not None and edited is None and self.graphs.has(key):
            self.graphs.replay(key)
        else:
            self._draw(step.batch, step.logits, features, edited)
        proposing = self._proposer.guess(features, len(step.batch.slots))
        counts, slots = (part[: shape.num_requests] for part in (self._state.counts, step.batch.slots))
        proposed = partial(self._state.drafts, slots)
        self._under_way.append(self._results.copied(step, counts, proposed, proposing, errors))

    def collect(self) -> StepOutput:
        """Wait for the tokens of the oldest step under way."""
        pending = self._under_way.popleft()
        output = StepOutput([], []) if pending is None else self._results.output(pending)
        if self._meeting is not None:
            self._meeting.check()  # what is drawn without the others is nothing
        return output

    @contextmanager
    def _between_stages(self, rows: int) -> Iterator[None]:
        """So many rows come from the stage before, and what they are then goes to the one behind."""
        for taken in self._decoder.taken:
            self._neighbours.take(taken[:rows])
        yield
        if not self.plan.draws:
            self._neighbours.give(self._decoder.told[0][:rows])

    def _asked(self, shape: StepShape) -> tuple[Features, Sequence[tuple[int, range]]]:
        """How the step's requests draw, and which prompt tokens are reported, as of `Launched`."""
        return self._sampler.features(shape.slots[shape.draws]), self._results.prompt_positions(shape)

    def _capture_missed(self, least: int) -> bool:
        """Capture the graph that most steps have missed, where so many have; whether there is one more."""
        key = self.graphs.most_missed(least)
        return key is not None and self._capture(key)

    def _capture(self, key: GraphKey) -> bool:
        """Whether there is this graph now: no other step may be between its forward pass and its draw."""
        if not self.graphs.takes(key):
            return False
        longest = key.tokens or key.each
        shape = nobody(key.size, longest, key.max_length, key.each, key.adapters, key.decodes)
        shape = replace(shape, adapt_experts=key.experts, own_rows=key.own_rows)
        batch = self._sent(shape, key.rows, key.size)
        self._prepare(batch)
        logits = self._place_of_logits(key)
        draw = None if key.features is None else partial(self._draw, batch, logits, key.features)
        self.graphs.capture(key, draw or partial(self._forward_to_draw, batch), self._ranks.rehearsing)
        return key in self.graphs

    def _prepare(self, batch: Batch) -> None:
        """From slots to the step's rows."""
        state = self._state
        batch.prepare(state.arena.arrays, state.tokens, state.num_computed, state.num_drafts)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """From slots to hidden states [rows, hidden], and the logits drawn from [requests · each, vocab]."""
        self._prepare(batch)
        hidden = self._decoder.hidden(batch)
        rows = hidden.index_select(0, batch.draw_rows.flatten())
        return hidden, self._decoder.logits(rows, batch.draw_slots.flatten(), batch.adapters)

    def _forward_to_draw(self, batch: Batch) -> None:
        """The forward pass of a graph: its logits lie where the graph that draws reads them."""
        _, logits = self._forward(batch)
        self._reserve(logits)
        self._logits[: len(logits), : logits.shape[1]].copy_(logits)

    def _reserve(self, logits: Tensor) -> None:
        """Make the place where graphs leave logits like these."""
        largest = self.graph_sizes.largest_rows
        if len(self._logits) < largest:
            self._logits = logits.new_empty(largest, max(logits.shape[1], self._sampler.vocab))

    def _place_of_logits(self, key: GraphKey) -> Tensor:
        """Where such a graph's forward pass leaves logits for its draw."""
        columns = self._sampler.vocab if key.own_rows else self.plan.route.vocab
        return self._logits[: key.size * key.each, :columns]

    def _draw(self, batch: Batch, logits: Tensor, features: Features, edited: Tensor | None = None) -> None:
        """From logits [requests · each, vocab] to the slots' new tokens and lengths."""
        state, requests = self._state, len(batch.slots)
        drawn = self._results.drawn(len(logits))
        self._sampler.draw(logits, batch, features, drawn, edited)
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
        self._proposer.follow(batch)

    def _report(self, batch: Batch, hidden: Tensor, tokens: list[Known]) -> Draws:
        return report(self._decoder, self._sampler, self._state, batch, hidden, tokens)

    def _start(self, start: SlotStart) -> None:
        self._enter(start)
        self._sampler.start(start.slot, start.params)
        self._results.start(start)
        self._proposer.start(start)
        if self._processed is not None:
            self._processed.start(start)

    def _enter(self, start: SlotStart) -> None:
        """The slot is this request's from now on."""
        put, slot = self._state.arena.put, start.slot
        put("tokens", start.tokens, slot)
        put("num_tokens", [len(start.tokens)], slot)
        put("num_computed", [start.num_computed], slot)
        put("num_drafts", [0], slot)
        put("prompt_len", [start.num_prompt], slot)
        if self._given is not None:
            self._given.start(start)

    def _sent(self, shape: StepShape, num_rows: int, num_requests: int) -> Batch:
        """All that has changed, and which requests the step is of, goes to the device.

        What comes back are views of the fixed tensors, of these sizes.
        """
        for name, values in batch_arrays(shape, num_requests).items():
            self._state.arena.put(name, values)
        self._state.arena.send()
        state = self._state
        return Batch.of(
            state.arena.arrays,
            num_rows,
            num_requests,
            shape.each,
            tables=state.tables,
            type_from=state.type_from,
            num_decodes=shape.num_decodes,
            max_query=shape.max_query,
            max_length=shape.max_length,
            adapters=self._adapters.of(shape) if self._adapters is not None else None,
        )
