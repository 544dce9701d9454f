"""What one step computes, as the kernels read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slipway.engine.plan import StepPlan
from slipway.load.arrays import Ints
from slipway.load.quantized.kv_scales import KVDivisors
from slipway.worker.device.low_rank import SlotAdapters
from slipway_kernels.slots import prepare

if TYPE_CHECKING:
    from slipway.worker.device.given import GivenRows

PADDING = -1
"""Slot of a row, or of a request, that stands for nobody."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The host's knowledge of a step: sizes of grids, and who draws.

    Requests that compute their next token and drafts alone come first, as the attention kernels want them.
    """

    order: Ints  # [requests]  place in the plan of each request of the batch; -1: padding
    slots: Ints  # [requests]  -1: padding
    num_new: Ints  # [requests]  drafts included
    num_drafts: Ints  # [requests]  of these, the most that are verified
    first: Ints  # [requests]  position of its first row
    draws: NDArray[np.bool_]  # [requests]  whether its last row draws a token, and those of drafts
    each: int  # rows of a request that draw, at most
    num_decodes: int
    num_tokens: int
    max_query: int
    max_length: int
    """Longest context of a request after the step, at most."""
    num_adapters: int = 0
    """Different ones, at most."""
    adapt_experts: bool = False
    """Whether any of them adds to experts."""
    own_rows: int = 0
    """Rows of tokens of its own that each may have, where any of them has some."""

    @classmethod
    def of(cls, plan: StepPlan) -> StepShape:
        """Raises ValueError where a slot comes twice, or a grant is not within the positions granted."""
        given = np.array((plan.slots, plan.num_new, plan.num_drafts, plan.lengths), np.int32)
        order = np.argsort(given[1] - given[2] != 1, kind="stable").astype(np.int32)
        slots, num_new, num_drafts, lengths = given[:, order]
        draws = np.array(plan.draws, np.bool_)[order]
        known = num_new - num_drafts
        if (known < 1).any() or (num_new > lengths).any() or len(set(plan.slots)) < len(slots):
            raise ValueError(
                f"The plan does not fit the slots: slots {plan.slots}, grants {plan.num_new}, drafts "
                f"{plan.num_drafts}, positions {plan.lengths}. Each slot comes once, and a grant is at least "
                "1 and its drafts, and at most its positions."
            )
        return cls(
            order,
            slots,
            num_new,
            num_drafts,
            lengths - num_new,
            draws,
            each=1 + int(num_drafts.max(initial=0)),
            num_decodes=int((known == 1).sum()),
            num_tokens=int(num_new.sum()),
            max_query=int(num_new.max(initial=0)),
            max_length=int(lengths.max(initial=0)),
        )

    @property
    def num_requests(self) -> int:
        """Padding between them included."""
        return len(self.slots)

    def with_decodes(self, count: int) -> StepShape:
        """The same step, with padding behind its decodes so that there are `count` of them."""
        at = [self.num_decodes] * (count - self.num_decodes)
        return replace(
            self,
            order=np.insert(self.order, at, PADDING),
            slots=np.insert(self.slots, at, PADDING),
            num_new=np.insert(self.num_new, at, 0),
            num_drafts=np.insert(self.num_drafts, at, 0),
            first=np.insert(self.first, at, 0),
            draws=np.insert(self.draws, at, False),
            num_decodes=count,
        )


def nobody(
    num_requests: int,
    max_query: int,
    max_length: int,
    each: int,
    num_adapters: int = 0,
    num_decodes: int | None = None,
) -> StepShape:
    """A step of padding alone, as if each request had up to `max_query` rows, of which `each` draw.

    num_decodes  requests without a prompt; None: all or, where requests may have more rows, none
    """
    if num_decodes is None:
        num_decodes = num_requests if max_query == each else 0
    none = np.zeros(0, np.int32)
    return StepShape(
        *(none, none, none, none, none, none.astype(bool)),
        each=each,
        num_decodes=num_decodes,
        num_tokens=0,
        max_query=max_query,
        max_length=max_length,
        num_adapters=num_adapters,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """The step's tensors on the device; rows and requests beyond the real ones are padding.

    token_ids    [rows]  int32
    positions    [rows]  int32
    row_slots    [rows]  int32, -1: padding
    slots        [requests]  int32, -1: padding
    query_start  [requests + 1]  int32
    lengths      [requests]  int32, positions known after the step
    draw_rows    [requests, each]  int32, the rows whose logits a request draws from
    draw_slots   [requests, each]  int32, -1 where nothing is drawn
    draw_lengths [requests, each]  int32, tokens known before the draw
    tables       [groups, num_slots, max_blocks]  int32
    type_from    [num_slots]  int32, the position from which on tokens are of the second type
    num_decodes  the first so many requests have up to `each` rows
    """

    token_ids: Tensor
    positions: Tensor
    row_slots: Tensor
    slots: Tensor
    query_start: Tensor
    lengths: Tensor
    draw_rows: Tensor
    draw_slots: Tensor
    draw_lengths: Tensor
    tables: Tensor
    type_from: Tensor
    num_decodes: int
    max_query: int
    max_length: int
    kv_divisors: KVDivisors | None = None
    """Of a step that finds the scales of keys and values: every later one keeps them."""
    adapters: SlotAdapters | None = None
    """None: no request has one, and nothing is launched for them."""
    given: GivenRows | None = None
    """None: all rows are of tokens."""

    @classmethod
    def of(cls, arrays: Mapping[str, Tensor], rows: int, requests: int, each: int, **host: Any) -> Batch:
        """The first of these arrays, which have the fields' names; host: the other fields."""
        draws, shape = requests * each, (requests, each)
        return cls(
            token_ids=arrays["token_ids"][:rows],
            positions=arrays["positions"][:rows],
            row_slots=arrays["row_slots"][:rows],
            slots=arrays["slots"][:requests],
            query_start=arrays["query_start"][: requests + 1],
            lengths=arrays["lengths"][:requests],
            draw_rows=arrays["draw_rows"][:draws].view(shape),
            draw_slots=arrays["draw_slots"][:draws].view(shape),
            draw_lengths=arrays["draw_lengths"][:draws].view(shape),
            **host,
        )

    def prepare(
        self, arrays: Mapping[str, Tensor], tokens: Tensor, num_computed: Tensor, num_drafts: Tensor
    ) -> None:
        """Fill its tensors from slots and what `arrays` were told of the step."""
        prepare(
            slots=self.slots,
            row_start=arrays["row_start"][: len(self.query_start)],
            draws=arrays["draws"][: len(self.slots)],
            tokens=tokens,
            num_computed=num_computed,
            num_drafts=num_drafts,
            token_ids=self.token_ids,
            positions=self.positions,
            row_slots=self.row_slots,
            query_start=self.query_start,
            lengths=self.lengths,
            draw_rows=self.draw_rows,
            draw_slots=self.draw_slots,
            draw_lengths=self.draw_lengths,
        )


def batch_arrays(shape: StepShape, num_requests: int) -> dict[str, Ints]:
    """What the device is told of a step, padded to `num_requests`, by the names that SlotState has."""
    extra = num_requests - shape.num_requests
    ends = np.cumsum(shape.num_new, dtype=np.int32)
    return {
        "slots": _padded(shape.slots, extra, PADDING),
        "draws": _padded(np.where(shape.draws, 1 + shape.num_drafts, 0), extra, 0),
        "row_start": _padded(np.concatenate(([0], ends)), extra, shape.num_tokens),
    }


def _padded(values: NDArray[np.integer], extra: int, fill: int) -> Ints:
    padded: Ints = np.concatenate((values, np.full(extra, fill))).astype(np.int32)
    return padded
