"""What a step computes and what comes out. Both are msgspec structs, so that a run can be recorded."""

from __future__ import annotations

import msgspec

from slipway.engine.messages import TokenLogprobs
from slipway.engine.params import SamplingParams

PageCopy = tuple[int, int]
"""Source page, target page; one of them is the host's."""


class SlotStart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request takes a slot: new, or resumed after a preemption with the output it had."""

    slot: int
    tokens: list[int]
    num_prompt: int
    num_computed: int
    params: SamplingParams
    prompt_logprobs_from: int
    """First prompt position still to report."""


class PageGrant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Pages that join a slot's block table of one group, from block `start` on."""

    group: int
    slot: int
    start: int
    pages: list[int]


class StepPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the worker runs in one step. It carries differences only; the rest is in the slots.

    A slot whose computed tokens reach its known ones in this step draws a token and appends it itself.
    """

    starts: list[SlotStart]
    pages: list[PageGrant]
    slots: list[int]
    """[num_requests]"""
    num_new: list[int]
    """[num_requests]  tokens to compute now; they sum to the token budget or less"""
    swap_out: list[PageCopy] = []
    """Pages of preempted requests to copy to the host before anything else: others may own them now."""
    swap_in: list[PageCopy] = []
    """Pages to copy back after that and before the step computes."""


class StepOutput(msgspec.Struct, array_like=True, gc=False):
    """By request, in the plan's order."""

    tokens: list[int]
    """The drawn token, -1 where the request has not caught up yet."""
    failed: list[int]
    """Indices of requests whose logits were no numbers."""
    logprobs: dict[int, TokenLogprobs] = {}
    """Of the drawn token, by index, where asked for."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    """Of the prompt tokens that this step could judge, by index."""
