"""What a step computes and what comes out. Both are msgspec structs, so that a run can be recorded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipway.engine.messages import AdapterRef, Pooled, TokenLogprobs
from slipway.engine.params import PoolingParams, SamplingParams

PageCopy = tuple[int, int]
"""Source page, target page; one of them is the host's."""
Masks = dict[int, NDArray[np.uint32]]
"""By a request's index in the plan: [1 + num_drafts, ceil(vocab / 32)] bits, one a token that may be drawn; a
row for its next token and for the one after each draft. A request that is absent may draw anything."""


class SlotStart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request takes a slot: new, or resumed after a preemption with the output it had."""

    slot: int
    tokens: list[int]
    num_prompt: int
    num_computed: int
    params: SamplingParams
    prompt_logprobs_from: int
    """First prompt position still to report."""
    masked: bool = False
    """Its draws come with masks, for which its drafts are reported."""
    adapter: int = -1
    """Place of the adapter that computes it; -1: the model alone."""
    pooling: PoolingParams | None = None
    """Its rows are the answer; None: it draws tokens."""
    given: bytes = b""
    """Embeddings that stand for its first tokens, fp32 [any number, hidden]."""


NO_PLACE = -1
"""Instead of an adapter's place: there is none."""


class AdapterChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place for adapters has another from now on; None: it is empty."""

    place: int
    adapter: AdapterRef | None


class PageGrant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Pages that join a slot's block table of one group, from block `start` on."""

    group: int
    slot: int
    start: int
    pages: list[int]


class Drawn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a step drew on the last pipeline stage, for the slots of those before it. One entry a slot."""

    slots: list[int]
    tokens: list[list[int]]
    """All but the last of a slot were its drafts."""
    drafts: list[list[int]]
    """What the slot verifies next, where that does not follow from its tokens."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the worker runs in one step. It carries differences only; the rest is in the slots.

    Rows of a slot begin where the slot has come to, which the worker knows and, with drafts under way, nobody
    else. The lists have one entry a request.
    """

    starts: list[SlotStart]
    pages: list[PageGrant]
    slots: list[int]
    num_new: list[int]
    """Rows to compute now, drafts included; they sum to the token budget or less."""
    num_drafts: list[int]
    """Of these, the most that may verify drafts, where the slot has them."""
    draws: list[bool]
    """Whether the slot has caught up with its tokens then: it draws one, and one for each draft accepted."""
    lengths: list[int]
    """Positions of the slot that are computed then, at most."""
    swap_out: list[PageCopy] = []
    """Pages of preempted requests to copy to the host before anything else: others may own them now."""
    swap_in: list[PageCopy] = []
    """Pages to copy back after that and before the step computes."""
    drafts: dict[int, Sequence[int]] = {}
    """By index, what is verified instead of what the slot holds: as many as `num_drafts` says."""
    adapters: list[AdapterChange] = []
    """Carried out before anything starts: a worker reads those that it has not been told to read before."""
    ahead: list[int] = []
    """Most drafts to guess behind the slot's draw, with pages for them; empty where none are guessed."""
    drawn: list[Drawn] = []
    """By steps before this one, of which nothing has been told yet: entered before anything starts, by
    pipeline stages that do not draw themselves."""


class StepOutput(msgspec.Struct, array_like=True, gc=False):
    """By request, in the plan's order."""

    tokens: list[list[int]]
    """The tokens drawn: none where the request has not caught up yet, several where drafts were accepted."""
    failed: list[int]
    """Indices of requests whose logits were no numbers, after these tokens."""
    errors: dict[int, str] = {}
    """By index, why a request cannot go on: its own logits processors failed."""
    logprobs: dict[int, list[TokenLogprobs]] = {}
    """Of the drawn tokens, by index, where asked for."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    """Of the prompt tokens whose logits this step computed, by index."""
    drafts: dict[int, list[int]] = {}
    """Of requests with masks, and of all behind other pipeline stages, by index: what their slots verify
    next; absent where that is nothing."""
    verified: dict[int, int] = {}
    """Drafts of a proposer that the step verified, by index; absent where that is none."""
    pooled: dict[int, Pooled] = {}
    """Of requests that pool and whose prompt is computed, by index."""
    forward_seconds: float = 0.0
    """What the forward pass took, where the worker was told to time it."""
    proposing_seconds: float = 0.0
    """What guessing behind this step's draws took."""


def written_masks(masks: Masks | None) -> dict[int, bytes]:
    """For a record, or for another process."""
    return {index: mask.tobytes() for index, mask in (masks or {}).items()}


def read_masks(written: dict[int, bytes], plan: StepPlan) -> Masks:
    """Of the plan with which they were written."""
    return {
        index: np.frombuffer(words, np.uint32).reshape(1 + plan.num_drafts[index], -1)
        for index, words in written.items()
    }
