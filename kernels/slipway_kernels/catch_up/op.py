"""Slots of a model that guesses for another, beside the target's on the device.

A pass of that model is `catch_up`, the slots' `prepare` over its own counts, the model, `last_rows`, a draw
and `append`, which leaves a row to compute where another draft is wanted: so the passes behind the first need
no `catch_up`, are all alike, and nothing of them is known to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.catch_up.kernel import append_kernel, catch_up_kernel, last_rows_kernel
from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.tiles import Tile, pick

TILES = (Tile(80, {"WIDTH": 128}, num_warps=1),)


@prepared
def catch_up(
    slots: Tensor,
    row_start: Tensor,
    ahead: Tensor,
    num_tokens: Tensor,
    num_computed: Tensor,
    own_computed: Tensor,
    own_rows: Tensor,
    wanted: Tensor,
    *,
    max_len: int,
    length: int,
    block: int,
) -> None:
    """Decide what the model computes of each slot behind a step of the target.

    slots         [requests]      -1: padding
    row_start     [requests + 1]  rows that each may have begin here; the last: where all end
    ahead         [requests]      most drafts to guess
    num_tokens    [num_slots]     known tokens of the request
    num_computed  [num_slots]     of these, by the target; one less than known where it drew
    own_computed  [num_slots]     by this model; lowered where drafts were rejected
    own_rows      [num_slots]     written: tokens that it computes now
    wanted        [num_slots]     written: drafts to guess: 0 where the target drew nothing, or rows are short
    max_len: of a slot. length: tokens that the model can read. block: where nothing is to be guessed, it
    follows to the end of the last whole block of so many tokens. All are int32. Raises ValueError where
    shapes disagree.
    """
    of_slots = num_tokens, num_computed, own_computed, own_rows, wanted
    _check(slots, [row_start[1:], ahead], of_slots)
    _launch(
        catch_up_kernel,
        slots,
        row_start_ptr=row_start,
        ahead_ptr=ahead,
        num_tokens_ptr=num_tokens,
        num_computed_ptr=num_computed,
        own_computed_ptr=own_computed,
        own_rows_ptr=own_rows,
        wanted_ptr=wanted,
        max_len=max_len,
        length=length,
        block=block,
    )


@prepared
def last_rows(
    slots: Tensor,
    query_start: Tensor,
    lengths: Tensor,
    num_drafts: Tensor,
    wanted: Tensor,
    draw_rows: Tensor,
    draw_slots: Tensor,
    draw_lengths: Tensor,
) -> None:
    """Where each request draws a draft: at its last row, if it wants more than the slot has.

    query_start   [requests + 1]  lengths [requests]: as `prepare` wrote them
    num_drafts    [num_slots]     of the slot so far
    draw_rows, draw_slots, draw_lengths  [requests]  written: the row, its slot or -1, tokens before the draw
    The rest is as in `catch_up`.
    """
    _check(slots, [query_start[1:], lengths, draw_rows, draw_slots, draw_lengths], [num_drafts, wanted])
    _launch(
        last_rows_kernel,
        slots,
        query_start_ptr=query_start,
        lengths_ptr=lengths,
        num_drafts_ptr=num_drafts,
        wanted_ptr=wanted,
        draw_rows_ptr=draw_rows,
        draw_slots_ptr=draw_slots,
        draw_lengths_ptr=draw_lengths,
    )


@prepared
def append(
    slots: Tensor,
    drawn: Tensor,
    tokens: Tensor,
    num_tokens: Tensor,
    num_drafts: Tensor,
    own_computed: Tensor,
    own_rows: Tensor,
    wanted: Tensor,
) -> None:
    """The rows of a pass are computed, and what was drawn is one more draft of its slot.

    drawn         [requests]            -1: nothing, or the row failed: then no more is wanted
    tokens        [num_slots, max_len]  drafts lie behind the known ones
    own_computed  [num_slots]           grows by own_rows
    own_rows      [num_slots]           written: 1 where another draft is wanted, else 0
    The rest is as in `catch_up`.
    """
    _check(slots, [drawn], [num_tokens, num_drafts, own_computed, own_rows, wanted, tokens[:, 0]])
    _launch(
        append_kernel,
        slots,
        drawn_ptr=drawn,
        tokens_ptr=tokens,
        num_tokens_ptr=num_tokens,
        num_drafts_ptr=num_drafts,
        own_computed_ptr=own_computed,
        own_rows_ptr=own_rows,
        wanted_ptr=wanted,
        tokens_stride=tokens.stride(0),
    )


def _launch(kernel: object, slots: Tensor, **arguments: object) -> None:
    tile = pick(TILES, arch_of(slots.device))
    grid = (-(-len(slots) // tile.constants["WIDTH"]),)
    launch(kernel, grid, tile=tile, slots_ptr=slots, requests=len(slots), **arguments)


def _check(slots: Tensor, of_requests: list[Tensor], of_slots: list[Tensor] | tuple[Tensor, ...]) -> None:
    if any(one.shape != slots.shape for one in of_requests) or len({len(one) for one in of_slots}) > 1:
        raise ValueError(
            f"There are {len(slots)} requests; what has a number for each is "
            f"{[list(one.shape) for one in of_requests]}, and what has one for each slot "
            f"{[list(one.shape) for one in of_slots]}."
        )
    if any(one.dtype != torch.int32 for one in (slots, *of_requests, *of_slots)):
        raise ValueError(f"What concerns slots is int32, and not {[str(one.dtype) for one in of_slots]}.")
