"""What the model thought of the tokens of prompts (`prompt_logprobs`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipway.worker.device.any_decoder import AnyDecoder
from slipway.worker.device.batch import Batch, StepShape
from slipway.worker.device.pinned import sent
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.state import SlotState
from slipway_kernels.sampling.device import Draws

REPORTED_AT_ONCE = 256
"""Rows of logits that this takes at a time."""

Known = tuple[int, int, int, int]
"""A known token: its request's place in the batch, which of the request's rows is before it, its slot and its
position."""


def known_tokens(shape: StepShape, known: Sequence[tuple[int, range]]) -> list[Known]:
    """Those at these positions of requests, which are told by their places in the batch."""
    slots, first = shape.slots.tolist(), shape.first.tolist()
    return [
        (place, position - first[place] - 1, slots[place], position)
        for place, positions in known
        for position in positions
    ]


def report(
    decoder: AnyDecoder, sampler: Sampler, state: SlotState, batch: Batch, hidden: Tensor, tokens: list[Known]
) -> Draws:
    """Log-probabilities of known tokens, each from the row before it.

    hidden  [rows, hidden]
    """
    device = state.device
    places, before, slots, positions = sent(torch.tensor(tokens), device).unbind(1)
    rows = batch.query_start[places] + before
    given = state.tokens[slots, positions]
    result = Draws.empty(len(tokens), sampler.max_top, device)
    for begin in range(0, len(tokens), REPORTED_AT_ONCE):
        part = slice(begin, begin + REPORTED_AT_ONCE)
        logits = decoder.logits(hidden[rows[part]], slots[part].int(), batch.adapters)
        sampler.report(logits, given[part], result[part])
    return result
