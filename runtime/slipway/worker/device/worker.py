"""The worker on a device: plans come in, steps are launched ahead of their results, outputs follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from slipway.engine.plan import PageGrant, SlotStart, StepOutput, StepPlan
from slipway.load.quantized.kv_scales import KVDivisors
from slipway.worker.device.batch import Batch, StepShape, batch_arrays, nobody
from slipway.worker.device.graphs import EARLY, Graphs, GraphSizes
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.results import Pending, Results, Wanted
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState
from slipway.worker.device.swap import SwapSpace
from slipway_kernels.sampling import Features
from slipway_kernels.sampling.device import Draws
from slipway_kernels.slots import finish, prepare

REPORTED_AT_ONCE = 256
"""Rows of logits that prompt log-probabilities take at a time."""


class AnyDecoder(Protocol):
    """The model on the device: our code's `Decoder`, or transformers'."""

    @property
    def graphs(self) -> bool:
        """Whether steps can be captured in CUDA graphs."""

    def use(self, pages: DevicePages) -> None:
        """Keep keys and values in these pages from now on."""

    def hidden(self, batch: Batch) -> Tensor:
        """[rows, hidden], of which `logits` makes logits."""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden] → [rows, vocab]"""


@dataclass(frozen=True, slots=True)
class Launched:
    """A step whose forward pass the device has been given, and whose tokens are still to be drawn.

    logits    [requests, vocab]
    known     requests whose prompt tokens are reported, with their positions, and `prompt` what is
    graph     key of the graph that draws; None where the draw is launched kernel by kernel
    """

    shape: StepShape
    batch: Batch
    logits: Tensor
    features: Features
    known: list[tuple[int, range]]
    prompt: Draws | None = None
    graph: Hashable = None


class DeviceWorker:
    """Keeps requests in slots on the device and runs the decoder over them.

    A step is launched without waiting: its tokens are drawn and appended on the device, so that the next one
    can be launched before they reach the host. `collect` waits for them. Forward pass and draw are graphs of
    their own: new ways to draw capture no forward pass again.
    """

    def __init__(
        self,
        state: SlotState,
        sampler: Sampler,
        decoder: AnyDecoder,
        swap: SwapSpace,
        graph_sizes: Iterable[int],
        *,
        graph_length: int,
        token_budget: int,
        max_top: int,
        progress: Callable[[str, int, int], None],
        kv_divisors: KVDivisors | None = None,
    ) -> None:
        """kv_divisors: the first step of requests finds the scales of keys and values by them."""
        self._state = state
        self._sampler = sampler
        self._decoder = decoder
        self._swap = swap
        self._token_budget = token_budget
        self.most_requests = min(state.num_slots, token_budget)
        """Of one step: no fixed tensor has room for more."""
        self.graph_sizes = GraphSizes.of(graph_sizes, self.most_requests, graph_length)
        self._progress = progress
        self._kv_divisors = kv_divisors  # until the first step has found the scales
        self.graphs = Graphs()
        self._launched: Launched | None = None
        self._under_way: deque[Pending] = deque()
        self._logits = torch.empty(0, 0)
        """[largest graph, vocab]  what a captured forward pass leaves to a captured draw; in no graph's pool,
        where the draw's own memory may lie over it"""
        self._results = Results(state.num_slots, max_top, state.device)
        device = state.device
        self._rows = {
            name: torch.zeros(token_budget, dtype=torch.int32, device=device)
            for name in ("token_ids", "positions", "row_slots")
        }
        self._ends = {
            name: torch.zeros(state.num_slots, dtype=torch.int32, device=device)
            for name in ("lengths", "last_rows")
        }

    def use(self, pages: DevicePages) -> None:
        """Keep keys and values in these pages from now on."""
        self._pages = pages
        self._decoder.use(pages)

    def warm_up(self) -> None:
        """Capture the first graphs; `largest_step` has run, so that workspaces have their last addresses."""
        sizes = [size for size in self.graph_sizes.sizes if size <= EARLY]
        for done, size in enumerate(sizes):
            self._progress("warmup", done, len(sizes))
            self._captured(size, Features())

    def largest_step(self) -> None:
        """Compute, draw and report as much as a step can, all of it padding.

        Loads the kernels and has shared workspaces grow to what any step needs: graphs know their addresses.
        """
        rows, requests = self._token_budget, self.most_requests
        shape = nobody(requests, rows, rows)
        self._send(shape, requests)
        # Padding sets no scales; but what finds them is loaded, and the memory that it takes measured.
        batch = replace(self._batch(shape, rows, requests), kv_divisors=self._kv_divisors)
        hidden, logits = self._forward(batch)
        self._draw(batch, logits, self._sampler.every_feature)
        self._report(hidden, [(0, 0, 0)] * min(REPORTED_AT_ONCE, rows))
        self._reserve(logits)
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)

    def idle(self) -> bool:
        """Nothing is worth doing while no request runs."""
        return False

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Give the device a step's forward pass. Raises ValueError where the plan contradicts itself."""
        self._swap.follow(plan, self._pages)
        for start in plan.starts:
            self._start(start)
        for grant in plan.pages:
            self._grant(grant)
        shape = StepShape.of(plan)
        if not shape.num_requests:
            self._state.upload.send()
            return
        features = self._sampler.features(shape.slots[shape.draws])
        known = self._results.prompt_positions(shape)
        divisors, self._kv_divisors = self._kv_divisors, None
        size = None if known or divisors else self.graph_sizes.size_for(shape)
        if size is not None and self._captured(size, features):
            self._send(shape, size)
            self.graphs.replay((size, None))
            batch, graph = self._batch(shape, size, size), (size, features)
            self._launched = Launched(shape, batch, self._logits[:size], features, known, graph=graph)
            return
        self._send(shape, shape.num_requests)
        batch = replace(self._batch(shape, shape.num_tokens, shape.num_requests), kv_divisors=divisors)
        hidden, logits = self._forward(batch)
        prompt = self._report_prompt(shape, known, hidden) if known else None
        self._launched = Launched(shape, batch, logits, features, known, prompt)

    @torch.inference_mode()
    def draw(self) -> None:
        """Give the device the draw of the step launched last, and the copies of what comes of it."""
        step, self._launched = self._launched, None
        if step is None:
            self._under_way.append(Pending(None))
            return
        if step.graph is None:
            self._draw(step.batch, step.logits, step.features)
        else:
            self.graphs.replay(step.graph)
        reports = step.features.max_top >= 0
        self._under_way.append(self._results.copied(step.shape, step.known, step.prompt, reports=reports))

    def collect(self) -> StepOutput:
        """Wait for the tokens of the oldest step under way."""
        return self._results.output(self._under_way.popleft())

    def _captured(self, size: int, features: Features) -> bool:
        """Whether there are graphs of `size` decoding requests; missing ones are made where there is room."""
        shape = nobody(size, size, self.graph_sizes.max_length)
        for key in ((size, None), (size, features)):  # the forward pass, the draw
            if key in self.graphs:
                continue
            if self.graphs.full:
                return False
            self._send(shape, size)
            batch = self._batch(shape, size, size)
            forward = partial(self._forward_to_draw, batch)
            draw = partial(self._draw, batch, self._logits[:size], features)
            self.graphs.capture(key, draw if key[1] else forward)
        return (size, features) in self.graphs

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """From slots to hidden states [rows, hidden], and the logits of last rows [requests, vocab]."""
        state = self._state
        prepare(
            batch.slots,
            batch.query_start,
            state.tokens,
            state.num_computed,
            batch.token_ids,
            batch.positions,
            batch.row_slots,
            batch.lengths,
            batch.last_rows,
        )
        hidden = self._decoder.hidden(batch)
        return hidden, self._decoder.logits(hidden.index_select(0, batch.last_rows))

    def _forward_to_draw(self, batch: Batch) -> None:
        """The forward pass of a graph: its logits lie where the graph that draws reads them."""
        _, logits = self._forward(batch)
        self._reserve(logits)
        self._logits[: len(logits)].copy_(logits)

    def _reserve(self, logits: Tensor) -> None:
        """Make the place where graphs leave logits like these."""
        largest = max(self.graph_sizes.sizes, default=0)
        if len(self._logits) < largest:
            self._logits = logits.new_empty(largest, logits.shape[1])

    def _draw(self, batch: Batch, logits: Tensor, features: Features) -> None:
        """From logits [requests, vocab] to the slots' new tokens and lengths."""
        state = self._state
        drawn = self._results.drawn(len(batch.slots))
        self._sampler.draw(logits, batch.draw_slots, features, drawn)
        finish(
            batch.slots,
            batch.query_start,
            drawn.token,
            state.tokens,
            state.num_tokens,
            state.num_computed,
            max_len=state.tokens.shape[1],
        )

    def _report_prompt(self, shape: StepShape, known: list[tuple[int, range]], hidden: Tensor) -> Draws:
        """Log-probabilities of the prompt's tokens at these positions, each from the row before it."""
        slots = shape.slots.tolist()
        offsets = (np.cumsum(shape.num_new) - shape.num_new - shape.first - 1).tolist()
        return self._report(
            hidden,
            [
                (offsets[place] + position, slots[place], position)
                for place, positions in known
                for position in positions
            ],
        )

    def _report(self, hidden: Tensor, tokens: list[tuple[int, int, int]]) -> Draws:
        """What the model thought of known tokens: each is told by the row before it, its slot and position.

        hidden  [rows, hidden]
        """
        device = self._state.device
        index = torch.tensor(tokens, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        rows, slots, positions = index.unbind(1)
        given = self._state.tokens[slots, positions]
        result = Draws.empty(len(tokens), self._results.max_top, device)
        for begin in range(0, len(tokens), REPORTED_AT_ONCE):
            part = slice(begin, begin + REPORTED_AT_ONCE)
            self._sampler.report(self._decoder.logits(hidden[rows[part]]), given[part], result[part])
        return result

    def _start(self, start: SlotStart) -> None:
        state, slot = self._state, start.slot
        state.put("tokens", start.tokens, slot)
        state.put("num_tokens", [len(start.tokens)], slot)
        state.put("num_computed", [start.num_computed], slot)
        state.put("prompt_len", [start.num_prompt], slot)
        self._sampler.start(slot, start.params)
        self._results.wanted[slot] = Wanted.of(start)

    def _grant(self, grant: PageGrant) -> None:
        self._state.put("tables", grant.pages, grant.group, grant.slot, grant.start)

    def _send(self, shape: StepShape, num_requests: int) -> None:
        """All that has changed, and which requests the step is of, goes to the device."""
        for name, values in batch_arrays(shape, num_requests).items():
            self._state.put(name, values)
        self._state.upload.send()

    def _batch(self, shape: StepShape, num_rows: int, num_requests: int) -> Batch:
        """Views of the fixed tensors, of these sizes."""
        state, rows, ends = self._state, self._rows, self._ends
        return Batch(
            rows["token_ids"][:num_rows],
            rows["positions"][:num_rows],
            rows["row_slots"][:num_rows],
            state.slots[:num_requests],
            state.draw_slots[:num_requests],
            state.query_start[: num_requests + 1],
            ends["lengths"][:num_requests],
            ends["last_rows"][:num_requests],
            shape.num_decodes,
            shape.max_query,
            shape.max_length,
        )
