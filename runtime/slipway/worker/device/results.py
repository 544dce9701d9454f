"""From the device's tensors to a step's output, without making the device wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import torch
from torch import Tensor

from slipway.engine.messages import TokenLogprobs
from slipway.engine.plan import SlotStart, StepOutput
from slipway.worker.device.batch import PADDING, Batch, StepShape
from slipway.worker.device.graphs import GraphKey
from slipway_kernels.sampling import Features
from slipway_kernels.sampling.device import Draws

_FIELDS = tuple(one.name for one in fields(Draws))
_IN_FLIGHT = 3
"""Sets of host tensors: two steps may be under way while a third's are read."""


class HostEvent:
    """As an event of the device, where the host computes in its place."""

    def record(self) -> None:
        self.time = time.monotonic()

    def elapsed_time(self, end: HostEvent) -> float:
        """In milliseconds, as of the device's."""
        return (end.time - self.time) * 1000


class Timer:
    """How long the device computes what it is given within the context, which does not wait for it."""

    def __init__(self, device: torch.device) -> None:
        on_device = device.type == "cuda"
        new: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True) if on_device else HostEvent
        self._begin, self._end = new(), new()

    def __enter__(self) -> None:
        self._begin.record()

    def __exit__(self, *error: object) -> None:
        self._end.record()

    @property
    def seconds(self) -> float:
        """To be asked when the device has done it."""
        return float(self._begin.elapsed_time(self._end)) / 1000


@dataclass(frozen=True, slots=True)
class Launched:
    """A step whose forward pass the device has been given, and whose tokens are still to be drawn.

    logits    [requests · each, vocab], or of a model that pools its final rows [rows, hidden]
    known     requests whose prompt tokens are reported, by place in the batch, with the positions of these
              tokens, and `prompt` what is reported
    graph     of the forward pass; None where it is launched kernel by kernel, as the draw is then
    timer     of the forward pass, where it is to be timed
    """

    shape: StepShape
    batch: Batch
    logits: Tensor
    features: Features
    known: Sequence[tuple[int, range]]
    prompt: Draws | None = None
    graph: GraphKey | None = None
    timer: Timer | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """A step under way: its tensors on the host are valid once `ready` has happened.

    starts  of the requests, which say what they want to know, by place in the batch
    drawn   [requests · each]
    counts  [requests]  how many of these are tokens
    known   as of `Launched`, and `prompt`
    drafts  [requests, most_drafts]  what is verified next, -1 behind it; where asked for
    errors  by index in the plan, why a request cannot go on
    proposing  what a model took that guesses, where one did
    """

    shape: StepShape
    starts: Mapping[int, SlotStart]
    drawn: Draws
    counts: Tensor
    known: Sequence[tuple[int, range]]
    prompt: Draws | None
    drafts: Tensor | None
    ready: torch.cuda.Event | None
    timer: Timer | None
    proposing: Timer | None
    errors: dict[int, str]


class Results:
    """Tensors that steps draw into, and what each slot wants reported."""

    def __init__(
        self, num_slots: int, most_drafts: int, max_top: int, device: torch.device, *, staged: bool = False
    ) -> None:
        """most_drafts  that a step verifies for a request
        staged       stages before this one want to know them all"""
        self.most_drafts = most_drafts
        self._staged = staged
        self.max_top = max_top
        self.device = device
        self._starts: dict[int, SlotStart] = {}
        rows = num_slots * (1 + most_drafts)
        self._device = Draws.empty(rows, max_top, device)
        self._host = [
            (self._on_host(rows), self._pinned(torch.empty(num_slots, dtype=torch.int32)))
            for _ in range(_IN_FLIGHT)
        ]
        self._turn = 0

    def start(self, start: SlotStart) -> None:
        """What this request wants is reported of its slot from now on."""
        self._starts[start.slot] = msgspec.structs.replace(start, tokens=[], given=b"")

    def drawn(self, rows: int) -> Draws:
        """What a step of so many logits rows draws into."""
        return self._device[:rows]

    def prompt_positions(self, shape: StepShape) -> list[tuple[int, range]]:
        """Requests of the batch that want log-probabilities of prompt tokens which this step computes, with
        the positions of these."""
        found = []
        for place, slot in enumerate(shape.slots.tolist()):
            start = self._starts[slot]
            if start.params.num_prompt_logprobs < 0:
                continue
            first = int(shape.first[place])
            begin = max(first + 1, start.prompt_logprobs_from)
            end = min(first + int(shape.num_new[place]) + 1, start.num_prompt)
            if begin < end:
                found.append((place, range(begin, end)))
        return found

    def copied(
        self,
        step: Launched,
        counts: Tensor,
        proposed: Callable[[], Tensor],
        proposing: Timer | None,
        errors: dict[int, str],
    ) -> Pending:
        """Start the copies to the host of what a step has drawn; the device goes on meanwhile.

        counts    [requests]  how many of the drawn tokens are kept
        proposed  gives the drafts of the requests, [requests, most_drafts]
        """
        shape, prompt = step.shape, step.prompt
        slots = enumerate(shape.slots.tolist())
        starts = {place: self._starts[slot] for place, slot in slots if slot != PADDING}
        rows = shape.num_requests * shape.each
        host, host_counts = self._host[self._turn]
        host, host_counts = host[:rows], host_counts[: shape.num_requests]
        self._turn = (self._turn + 1) % _IN_FLIGHT
        _copy(self.drawn(rows), host, reports=step.features.max_top >= 0)
        host_counts.copy_(counts, non_blocking=True)
        drafts = None
        if self.most_drafts and (self._staged or any(start.masked for start in starts.values())):
            found = proposed()
            drafts = self._pinned(torch.empty(found.shape, dtype=torch.int32))
            drafts.copy_(found, non_blocking=True)
        if prompt is not None:
            own = self._on_host(len(prompt.token))
            _copy(prompt, own, reports=True)
            prompt = own
        ready, timers = recorded(self.device), (step.timer, proposing)
        return Pending(shape, starts, host, host_counts, step.known, prompt, drafts, ready, *timers, errors)

    def output(self, pending: Pending) -> StepOutput:
        """Wait for the step, and give what it drew in the plan's order."""
        if pending.ready is not None:
            pending.ready.synchronize()
        drawn, order, each = pending.drawn, pending.shape.order.tolist(), pending.shape.each
        tokens, counts = drawn.token.view(-1, each).tolist(), pending.counts.tolist()
        # A row that failed behind a draft is drawn again, behind what is known then.
        failed = drawn.failed[::each].nonzero()[:, 0].tolist()
        output = StepOutput([[]] * len(pending.starts), [order[place] for place in failed], pending.errors)
        if pending.timer is not None:
            output.forward_seconds = pending.timer.seconds
        if pending.proposing is not None:
            output.proposing_seconds = pending.proposing.seconds
        # Rows that the slot had no draft for have drawn nothing, and not failed either.
        judged = ((drawn.token >= 0) | (drawn.failed > 0)).view(-1, each).sum(1).tolist()
        output.verified = {order[place]: rows - 1 for place, rows in enumerate(judged) if rows > 1}
        for place, start in pending.starts.items():
            index, count = order[place], counts[place]
            output.tokens[index] = tokens[place][:count]
            wanted = start.params.num_logprobs
            if wanted >= 0 and count:
                rows = range(place * each, place * each + count)
                output.logprobs[index] = [_reported(drawn, row, wanted) for row in rows]
            if (self._staged or start.masked) and count and pending.drafts is not None:
                output.drafts[index] = [token for token in pending.drafts[place].tolist() if token >= 0]
        if pending.prompt is not None:
            reported = iter(range(len(pending.prompt.token)))
            for place, positions in pending.known:
                wanted = pending.starts[place].params.num_prompt_logprobs
                output.prompt_logprobs[order[place]] = [
                    _reported(pending.prompt, row, wanted) for row in islice(reported, len(positions))
                ]
        return output

    def _on_host(self, rows: int) -> Draws:
        made = Draws.empty(rows, self.max_top, torch.device("cpu"))
        return Draws(*(self._pinned(getattr(made, name)) for name in _FIELDS))

    def _pinned(self, host: Tensor) -> Tensor:
        return host.pin_memory() if self.device.type == "cuda" else host


def recorded(device: torch.device) -> torch.cuda.Event | None:
    """What happens when the device has done all that it was given; None where the host computes for it."""
    if device.type != "cuda":
        return None
    # Blocking: a thread that spins would take the driver's lock from the one that launches.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _copy(source: Draws, target: Draws, *, reports: bool) -> None:
    """Start copying; without `reports` tokens and failures alone."""
    for name in _FIELDS if reports else ("token", "failed"):
        getattr(target, name).copy_(getattr(source, name), non_blocking=True)


def _reported(draws: Draws, row: int, wanted: int) -> TokenLogprobs:
    """The row's log-probabilities, with so many alternatives."""
    top = zip(draws.top_ids[row, :wanted].tolist(), draws.top_logprobs[row, :wanted].tolist(), strict=True)
    return TokenLogprobs(float(draws.logprob[row]), int(draws.rank[row]), list(top))
