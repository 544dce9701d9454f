"""What one step computes, as the kernels read it; and the host's copy of how far each slot has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slipway.engine.plan import SlotStart, StepPlan
from slipway.load.quantized.kv_scales import KVDivisors

Ints = NDArray[np.int32]
PADDING = -1
"""Slot of a row, or of a request, that stands for nobody."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The host's knowledge of a step: sizes of grids, and who draws.

    Requests with one token each come first, as the attention kernels want them.
    """

    order: Ints  # [requests]  place in the plan of each request of the batch
    slots: Ints  # [requests]
    num_new: Ints  # [requests]
    first: Ints  # [requests]  position of its first row
    draws: NDArray[np.bool_]  # [requests]  whether its last row draws a token
    num_decodes: int
    num_tokens: int
    max_query: int
    max_length: int
    """Longest context of a request after the step."""

    @property
    def num_requests(self) -> int:
        return len(self.slots)

    @property
    def only_decodes(self) -> bool:
        return self.num_decodes == self.num_requests


class SlotLengths:
    """How many tokens of each slot are known and computed, once all steps launched so far have run."""

    def __init__(self, num_slots: int) -> None:
        self.known = np.zeros(num_slots, np.int64)
        self.computed = np.zeros(num_slots, np.int64)

    def start(self, start: SlotStart) -> None:
        self.known[start.slot] = len(start.tokens)
        self.computed[start.slot] = start.num_computed

    def advance(self, plan: StepPlan) -> StepShape:
        """The shape of the plan's step, which counts as done from now on.

        Raises ValueError where the plan does not fit the slots.
        """
        slots, num_new = np.array(plan.slots, np.int32), np.array(plan.num_new, np.int32)
        order = np.argsort(num_new != 1, kind="stable").astype(np.int32)
        slots, num_new = slots[order], num_new[order]
        computed = self.computed[slots] + num_new
        if (num_new < 1).any() or (computed > self.known[slots]).any() or len(set(plan.slots)) < len(slots):
            raise ValueError(
                f"The plan does not fit the slots: slots {plan.slots}, grants {plan.num_new}. Each slot "
                "comes once, and a grant is at least 1 and never goes past the tokens that are known."
            )
        draws = computed == self.known[slots]
        self.computed[slots] = computed
        self.known[slots] += draws
        return StepShape(
            order,
            slots,
            num_new,
            (computed - num_new).astype(np.int32),
            draws,
            num_decodes=int((num_new == 1).sum()),
            num_tokens=int(num_new.sum()),
            max_query=int(num_new.max(initial=0)),
            max_length=int(computed.max(initial=0)),
        )


def nobody(num_requests: int, num_rows: int, max_length: int) -> StepShape:
    """A step of padding alone, as large as one of so many rows: all decodes where each request has one."""
    none = np.zeros(0, np.int32)
    decodes = num_requests if num_rows == num_requests else 0
    return StepShape(
        *(none, none, none, none, none.astype(bool)),
        num_decodes=decodes,
        num_tokens=0,
        max_query=1 if decodes else num_rows,
        max_length=max_length,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """The step's tensors on the device; rows and requests beyond the real ones are padding.

    token_ids    [rows]  int32
    positions    [rows]  int32
    row_slots    [rows]  int32, -1: padding
    slots        [requests]  int32, -1: padding
    draw_slots   [requests]  int32, -1 where the request draws nothing
    query_start  [requests + 1]  int32
    lengths      [requests]  int32, positions known after the step
    last_rows    [requests]  int32, the row whose logits a request draws from
    """

    token_ids: Tensor
    positions: Tensor
    row_slots: Tensor
    slots: Tensor
    draw_slots: Tensor
    query_start: Tensor
    lengths: Tensor
    last_rows: Tensor
    num_decodes: int
    max_query: int
    max_length: int
    kv_divisors: KVDivisors | None = None
    """Of a step that finds the scales of keys and values: every later one keeps them."""


def batch_arrays(shape: StepShape, num_requests: int) -> dict[str, Ints]:
    """What the device is told of a step, padded to `num_requests`, by the names that SlotState has."""
    extra = num_requests - shape.num_requests
    ends = np.cumsum(shape.num_new, dtype=np.int32)
    return {
        "slots": _padded(shape.slots, extra, PADDING),
        "draw_slots": _padded(np.where(shape.draws, shape.slots, PADDING), extra, PADDING),
        "query_start": _padded(np.concatenate(([0], ends)), extra, shape.num_tokens),
    }


def _padded(values: NDArray[np.integer], extra: int, fill: int) -> Ints:
    return np.concatenate((values, np.full(extra, fill))).astype(np.int32)


def restored(order: Ints, values: Sequence[int]) -> list[int]:
    """Values in the plan's order, given in the batch's."""
    result = [0] * len(values)
    for place, value in zip(order.tolist(), values, strict=True):
        result[place] = value
    return result
