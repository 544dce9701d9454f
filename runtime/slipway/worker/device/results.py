"""From the device's tensors to a step's output, without making the device wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import islice

import torch

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
    """

    output: int = -1
    prompt: int = -1
    prompt_from: int = 0
    num_prompt: int = 0

    @classmethod
    def of(cls, start: SlotStart) -> Wanted:
        params = start.params
        return cls(
            params.num_logprobs, params.num_prompt_logprobs, start.prompt_logprobs_from, start.num_prompt
        )


@dataclass(slots=True)
class Pending:
    """A step under way: its tensors on the host are valid once `ready` has happened.

    known   requests, by place in the batch, with the prompt's positions that `prompt` speaks of in turn
    """

    shape: StepShape | None
    wanted: Sequence[Wanted] = ()
    drawn: Draws | None = None
    known: Sequence[tuple[int, range]] = ()
    prompt: Draws | None = None
    ready: torch.cuda.Event | None = None


@dataclass(slots=True)
class Results:
    """Tensors that steps draw into, and what each slot wants reported."""

    rows: int
    max_top: int
    device: torch.device
    wanted: list[Wanted] = field(init=False)
    _device: Draws = field(init=False)
    _host: list[Draws] = field(init=False)
    _turn: int = 0

    def __post_init__(self) -> None:
        self.wanted = [Wanted()] * self.rows
        self._device = Draws.empty(self.rows, self.max_top, self.device)
        self._host = [self._on_host(self.rows) for _ in range(_IN_FLIGHT)]

    def drawn(self, rows: int) -> Draws:
        """What a step of so many requests draws into."""
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
        self, shape: StepShape, known: Sequence[tuple[int, range]], prompt: Draws | None, *, reports: bool
    ) -> Pending:
        """Start the copies to the host; the device goes on meanwhile.

        known    what `prompt_positions` found, and `prompt` what the model thought of it, if that is anything
        reports  whether drawn tokens come with log-probabilities
        """
        host = self._host[self._turn][: shape.num_requests]
        self._turn = (self._turn + 1) % _IN_FLIGHT
        _copy(self.drawn(shape.num_requests), host, reports=reports)
        if prompt is not None:
            own = self._on_host(len(prompt.token))
            _copy(prompt, own, reports=True)
            prompt = own
        ready = None
        if self.device.type == "cuda":
            # Blocking: a thread that spins would take the driver's lock from the one that launches.
            ready = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            ready.record()
        wanted = [self.wanted[slot] for slot in shape.slots.tolist()]
        return Pending(shape, wanted, host, known, prompt, ready)

    def output(self, pending: Pending) -> StepOutput:
        """Wait for the step, and give what it drew in the plan's order."""
        shape, drawn = pending.shape, pending.drawn
        if shape is None or drawn is None:
            return StepOutput([], [])
        if pending.ready is not None:
            pending.ready.synchronize()
        tokens = [[token] if token >= 0 else [] for token in drawn.token.tolist()]
        order = shape.order.tolist()
        output = StepOutput(
            restored(shape.order, tokens), [order[place] for place in drawn.failed.nonzero()[:, 0].tolist()]
        )
        for place, wanted in enumerate(pending.wanted):
            if wanted.output >= 0 and tokens[place]:
                output.logprobs[order[place]] = [_reported(drawn, place, wanted.output)]
        if pending.prompt is not None:
            rows = iter(range(len(pending.prompt.token)))
            for place, positions in pending.known:
                wanted_prompt = pending.wanted[place].prompt
                output.prompt_logprobs[order[place]] = [
                    _reported(pending.prompt, row, wanted_prompt) for row in islice(rows, len(positions))
                ]
        return output

    def _on_host(self, rows: int) -> Draws:
        made = Draws.empty(rows, self.max_top, torch.device("cpu"))
        if self.device.type != "cuda":
            return made
        return Draws(*(getattr(made, name).pin_memory() for name in _FIELDS))


def _copy(source: Draws, target: Draws, *, reports: bool) -> None:
    """Start copying; without `reports` tokens and failures alone."""
    for name in _FIELDS if reports else ("token", "failed"):
        getattr(target, name).copy_(getattr(source, name), non_blocking=True)


def _reported(draws: Draws, row: int, wanted: int) -> TokenLogprobs:
    """The row's log-probabilities, with so many alternatives."""
    top = zip(draws.top_ids[row, :wanted].tolist(), draws.top_logprobs[row, :wanted].tolist(), strict=True)
    return TokenLogprobs(float(draws.logprob[row]), int(draws.rank[row]), list(top))
