"""From the device's tensors to a step's output, without making the device wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice

import torch
from torch import Tensor

from slipway.engine.messages import TokenLogprobs
from slipway.engine.plan import SlotStart, StepOutput
from slipway.worker.device.batch import StepShape, restored
from slipway_kernels.sampling.device import Draws

_FIELDS = tuple(one.name for one in fields(Draws))
_IN_FLIGHT = 3
"""Sets of host tensors: two steps may be under way while a third's are read."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants to know beside its tokens; -1: nothing.

    output        alternatives of each drawn token
    prompt        alternatives of each prompt token from position `prompt_from` on
    drafts        whether it wants to know them, too
    """

    output: int = -1
    prompt: int = -1
    prompt_from: int = 0
    num_prompt: int = 0
    drafts: bool = False

    @classmethod
    def of(cls, start: SlotStart) -> Wanted:
        params = start.params
        return cls(
            params.num_logprobs,
            params.num_prompt_logprobs,
            start.prompt_logprobs_from,
            start.num_prompt,
            start.masked,
        )


@dataclass(slots=True)
class Pending:
    """A step under way: its tensors on the host are valid once `ready` has happened.

    drawn   [requests · each]
    counts  [requests]  how many of these are tokens
    known   requests, by place in the batch, with the prompt's positions that `prompt` speaks of in turn
    drafts  [requests, most_drafts]  what is verified next, -1 behind it; where asked for
    """

    shape: StepShape | None
    wanted: Sequence[Wanted] = ()
    drawn: Draws | None = None
    counts: Tensor | None = None
    known: Sequence[tuple[int, range]] = ()
    prompt: Draws | None = None
    drafts: Tensor | None = None
    ready: torch.cuda.Event | None = None


@dataclass(slots=True)
class Results:
    """Tensors that steps draw into, and what each slot wants reported.

    most_drafts  that a step verifies for a request
    """

    num_slots: int
    most_drafts: int
    max_top: int
    device: torch.device
    wanted: list[Wanted] = field(init=False)
    _device: Draws = field(init=False)
    _host: list[tuple[Draws, Tensor]] = field(init=False)
    _turn: int = 0

    def __post_init__(self) -> None:
        rows = self.num_slots * (1 + self.most_drafts)
        self.wanted = [Wanted()] * self.num_slots
        self._device = Draws.empty(rows, self.max_top, self.device)
        self._host = [
            (self._on_host(rows), self._pinned(torch.empty(self.num_slots, dtype=torch.int32)))
            for _ in range(_IN_FLIGHT)
        ]

    def drawn(self, rows: int) -> Draws:
        """What a step of so many logits rows draws into."""
        return self._device[:rows]

    def prompt_positions(self, shape: StepShape) -> list[tuple[int, range]]:
        """Requests of the batch that want log-probabilities of prompt tokens which this step computes, with
        the positions of these."""
        found = []
        for place, slot in enumerate(shape.slots.tolist()):
            wanted = self.wanted[slot]
            if wanted.prompt < 0:
                continue
            first = int(shape.first[place])
            begin = max(first + 1, wanted.prompt_from)
            end = min(first + int(shape.num_new[place]) + 1, wanted.num_prompt)
            if begin < end:
                found.append((place, range(begin, end)))
        return found

    def copied(
        self,
        shape: StepShape,
        counts: Tensor,
        known: Sequence[tuple[int, range]],
        prompt: Draws | None,
        proposed: Callable[[], Tensor],
        *,
        reports: bool,
    ) -> Pending:
        """Start the copies to the host; the device goes on meanwhile.

        counts    [requests]  how many of the drawn tokens are kept
        known     what `prompt_positions` found, and `prompt` what the model thought of it
        proposed  gives the drafts of the requests, [requests, most_drafts]
        reports   whether drawn tokens come with log-probabilities
        """
        wanted = [self.wanted[slot] for slot in shape.slots.tolist()]
        rows = shape.num_requests * shape.each
        host, host_counts = self._host[self._turn]
        host, host_counts = host[:rows], host_counts[: shape.num_requests]
        self._turn = (self._turn + 1) % _IN_FLIGHT
        _copy(self.drawn(rows), host, reports=reports)
        host_counts.copy_(counts, non_blocking=True)
        drafts = None
        if self.most_drafts and any(one.drafts for one in wanted):
            found = proposed()
            drafts = self._pinned(torch.empty(found.shape, dtype=torch.int32))
            drafts.copy_(found, non_blocking=True)
        if prompt is not None:
            own = self._on_host(len(prompt.token))
            _copy(prompt, own, reports=True)
            prompt = own
        ready = None
        if self.device.type == "cuda":
            # Blocking: a thread that spins would take the driver's lock from the one that launches.
            ready = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            ready.record()
        return Pending(shape, wanted, host, host_counts, known, prompt, drafts, ready)

    def output(self, pending: Pending) -> StepOutput:
        """Wait for the step, and give what it drew in the plan's order."""
        shape, drawn, counts = pending.shape, pending.drawn, pending.counts
        if shape is None or drawn is None or counts is None:
            return StepOutput([], [])
        if pending.ready is not None:
            pending.ready.synchronize()
        order, each = shape.order.tolist(), shape.each
        by_request = zip(drawn.token.view(-1, each).tolist(), counts.tolist(), strict=True)
        tokens = [row[:count] for row, count in by_request]
        # A row that failed behind a draft is drawn again, behind what is known then.
        failed = drawn.failed[::each].nonzero()[:, 0].tolist()
        output = StepOutput(restored(shape.order, tokens), [order[place] for place in failed])
        for place, wanted in enumerate(pending.wanted):
            if wanted.output >= 0 and tokens[place]:
                rows = range(place * each, place * each + len(tokens[place]))
                output.logprobs[order[place]] = [_reported(drawn, row, wanted.output) for row in rows]
            if wanted.drafts and pending.drafts is not None:
                drafts = pending.drafts[place].tolist()
                output.drafts[order[place]] = [token for token in drafts if token >= 0]
        if pending.prompt is not None:
            reported = iter(range(len(pending.prompt.token)))
            for place, positions in pending.known:
                wanted_prompt = pending.wanted[place].prompt
                output.prompt_logprobs[order[place]] = [
                    _reported(pending.prompt, row, wanted_prompt) for row in islice(reported, len(positions))
                ]
        return output

    def _on_host(self, rows: int) -> Draws:
        made = Draws.empty(rows, self.max_top, torch.device("cpu"))
        return Draws(*(self._pinned(getattr(made, name)) for name in _FIELDS))

    def _pinned(self, host: Tensor) -> Tensor:
        return host.pin_memory() if self.device.type == "cuda" else host


def _copy(source: Draws, target: Draws, *, reports: bool) -> None:
    """Start copying; without `reports` tokens and failures alone."""
    for name in _FIELDS if reports else ("token", "failed"):
        getattr(target, name).copy_(getattr(source, name), non_blocking=True)


def _reported(draws: Draws, row: int, wanted: int) -> TokenLogprobs:
    """The row's log-probabilities, with so many alternatives."""
    top = zip(draws.top_ids[row, :wanted].tolist(), draws.top_logprobs[row, :wanted].tolist(), strict=True)
    return TokenLogprobs(float(draws.logprob[row]), int(draws.rank[row]), list(top))
