"""The worker on a device: plans come in, steps are launched ahead of their results, outputs follow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from slipway.engine.plan import PageGrant, SlotStart, StepOutput, StepPlan
from slipway.worker.device.batch import Batch, SlotLengths, StepShape, batch_arrays, nobody
from slipway.worker.device.decoder import Decoder
from slipway.worker.device.graphs import EARLY, Graphs, GraphSizes
from slipway.worker.device.results import Pending, Results, Wanted
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState
from slipway_kernels.sampling.device import Draws
from slipway_kernels.sampling.record import Features
from slipway_kernels.slots.op import finish, prepare

JUDGED_AT_ONCE = 256
"""Rows of logits that prompt log-probabilities take at a time."""


class DeviceWorker:
    """Keeps requests in slots on the device and runs the decoder over them.

    A step is launched without waiting: its tokens are drawn and appended on the device, so that the next one
    can be launched before they reach the host. `collect` waits for them.
    """

    def __init__(
        self,
        state: SlotState,
        sampler: Sampler,
        decoder: Decoder,
        graph_sizes: GraphSizes,
        *,
        token_budget: int,
        max_top: int,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._state = state
        self._sampler = sampler
        self._decoder = decoder
        self._graph_sizes = graph_sizes
        self._token_budget = token_budget
        self._progress = progress
        self.graphs = Graphs()
        self._lengths = SlotLengths(state.num_slots)
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

    def warm_up(self) -> None:
        """Load the kernels by a step of the largest size, and capture the first graphs."""
        self.largest_step()
        sizes = [size for size in self._graph_sizes.sizes if size in EARLY]
        for done, size in enumerate(sizes):
            self._progress("warmup", done, len(sizes))
            self._capture(size, Features())

    def largest_step(self) -> None:
        """Compute as many rows and draw for as many requests as a step can have, all of them padding."""
        requests = min(self._state.num_slots, self._token_budget)
        shape = nobody(requests, self._token_budget, self._token_budget)
        self._send(shape, requests)
        self._compute(self._batch(shape, self._token_budget, requests), self._sampler.every_feature)
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)

    def idle(self) -> bool:
        """Nothing is worth doing while no request runs."""
        return False

    def step(self, plan: StepPlan) -> StepOutput:
        return self.collect(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending:
        """Give the device a step. Raises ValueError where the plan does not fit the slots."""
        for start in plan.starts:
            self._start(start)
        for grant in plan.pages:
            self._grant(grant)
        shape = self._lengths.advance(plan)
        if not shape.num_requests:
            self._state.upload.send()
            return Pending(None)
        features = self._sampler.features(shape.slots[shape.draws].tolist())
        judged = self._results.judged_rows(shape)
        size = None if judged else self._graph_sizes.size_for(shape)
        if size is not None:
            self._capture(size, features)
            self._send(shape, size)
            self.graphs.replay((size, features))
            return self._results.copied(shape, reports=features.max_top >= 0)
        self._send(shape, shape.num_requests)
        batch = self._batch(shape, shape.num_tokens, shape.num_requests)
        hidden = self._compute(batch, features)
        if not judged:
            return self._results.copied(shape, reports=features.max_top >= 0)
        counts = [0] * shape.num_requests
        for place, positions in judged:
            counts[place] = len(positions)
        prompt = self._judge(shape, judged, hidden)
        return self._results.copied(shape, reports=features.max_top >= 0, prompt=prompt, judged=counts)

    def collect(self, pending: Pending) -> StepOutput:
        """Wait for a step's tokens; in the order of launches."""
        return self._results.output(pending)

    def _capture(self, size: int, features: Features) -> None:
        """Make the graph of `size` decoding requests, unless there is one."""
        if (size, features) in self.graphs:
            return
        shape = nobody(size, size, self._graph_sizes.max_length)
        self._send(shape, size)
        batch = self._batch(shape, size, size)
        self.graphs.capture((size, features), partial(self._compute, batch, features))

    def _compute(self, batch: Batch, features: Features) -> Tensor:
        """All of a step on the device, from rows to the slots' new lengths. Returns the hidden states."""
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
        drawn = self._results.drawn(len(batch.slots))
        self._sampler.draw(self._decoder.logits(hidden[batch.last_rows]), batch.draw_slots, features, drawn)
        finish(
            batch.slots,
            batch.query_start,
            drawn.token,
            state.tokens,
            state.num_tokens,
            state.num_computed,
            max_len=state.tokens.shape[1],
        )
        return hidden

    def _judge(self, shape: StepShape, judged: list[tuple[int, range]], hidden: Tensor) -> Draws:
        """Log-probabilities of the prompt's tokens at these positions, each from the row before it."""
        device = self._state.device
        starts = np.concatenate(([0], np.cumsum(shape.num_new)))
        rows: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        for place, wanted in judged:
            offset = int(starts[place]) - int(shape.first[place]) - 1
            rows += [position + offset for position in wanted]
            slots += [int(shape.slots[place])] * len(wanted)
            positions += wanted
        index, slot, position = torch.tensor([rows, slots, positions], device=device).unbind()
        given = self._state.tokens[slot, position]
        result = Draws.empty(len(rows), self._results.max_top, device)
        for begin in range(0, len(rows), JUDGED_AT_ONCE):
            part = slice(begin, begin + JUDGED_AT_ONCE)
            self._sampler.report(self._decoder.logits(hidden[index[part]]), given[part], result[part])
        return result

    def _start(self, start: SlotStart) -> None:
        state, slot = self._state, start.slot
        self._lengths.start(start)
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
