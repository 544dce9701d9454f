"""What one step computes, as the kernels read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slipway.engine.plan import StepPlan
from slipway.load.quantized.kv_scales import KVDivisors

Ints = NDArray[np.int32]
Value = TypeVar("Value")
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

    @classmethod
    def of(cls, plan: StepPlan) -> StepShape:
        """Raises ValueError where a slot comes twice, or a grant is not within the positions granted."""
        slots, num_new = np.array(plan.slots, np.int32), np.array(plan.num_new, np.int32)
        order = np.argsort(num_new != 1, kind="stable").astype(np.int32)
        slots, num_new = slots[order], num_new[order]
        lengths = np.array(plan.lengths, np.int32)[order]
        if (num_new < 1).any() or (num_new > lengths).any() or len(set(plan.slots)) < len(slots):
            raise ValueError(
                f"The plan does not fit the slots: slots {plan.slots}, grants {plan.num_new}, positions "
                f"{plan.lengths}. Each slot comes once, and a grant is at least 1 and at most its positions."
            )
        return cls(
            order,
            slots,
            num_new,
            lengths - num_new,
            np.array(plan.draws, np.bool_)[order],
            num_decodes=int((num_new == 1).sum()),
            num_tokens=int(num_new.sum()),
            max_query=int(num_new.max(initial=0)),
            max_length=int(lengths.max(initial=0)),
        )

    @property
    def num_requests(self) -> int:
        return len(self.slots)

    @property
    def only_decodes(self) -> bool:
        return self.num_decodes == self.num_requests


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


def restored(order: Ints, values: Sequence[Value]) -> list[Value]:
    """Values in the plan's order, given in the batch's."""
    return [values[place] for place in np.argsort(order).tolist()]
