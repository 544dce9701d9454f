"""The worker's state on the device: request slots, read and written by kernels alone.

A step applies what the host has to say in one upload, prepares its rows from the slots, and finishes by
advancing them, so that the next step can be launched before its tokens have reached the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.slots.kernel import apply_runs_kernel, finish_kernel, prepare_kernel

RUN_TILES = (Tile(80, {"WIDTH": 1024}, num_warps=4),)
ROW_TILES = (Tile(80, {"WIDTH": 256}, num_warps=2),)
REQUEST_TILES = (Tile(80, {"WIDTH": 128}, num_warps=1),)

MOST_PIECES = 32
"""Programs of one run, or of one request's rows."""
MOST_PROGRAMS = 8192
"""Programs of all runs: many runs leave one each to most, and an empty program is not free."""


@prepared
def apply_runs(arena: Tensor, runs: Tensor, payload: Tensor) -> None:
    """arena[destination + i] = payload[source + i] for i < count, of each run (destination, source, count).

    arena    [words]  int32
    runs     [n, 3]   int32 or int64; a count of 0 is padding. No two runs may write the same word
    payload  [words]  int32
    What lies outside of the arena or the payload is not copied. Raises ValueError where types disagree.
    """
    if arena.dtype != torch.int32 or payload.dtype != torch.int32 or arena.dim() != 1 or payload.dim() != 1:
        raise ValueError(
            f"The arena is {arena.dtype} {list(arena.shape)} and the payload {payload.dtype} "
            f"{list(payload.shape)}: both are rows of int32 words."
        )
    if runs.shape[1:] != (3,) or runs.dtype not in (torch.int32, torch.int64) or not runs.is_contiguous():
        raise ValueError(
            f"runs are {runs.dtype} {list(runs.shape)}: give int32 or int64 [n, 3], contiguous: destination, "
            "source, count."
        )
    tile = pick(RUN_TILES, arch_of(arena.device))
    pieces = min(-(-len(payload) // tile.constants["WIDTH"]), MOST_PIECES, MOST_PROGRAMS // max(len(runs), 1))
    launch(
        apply_runs_kernel,
        (len(runs), max(pieces, 1)),
        tile=tile,
        arena_ptr=arena,
        runs_ptr=runs,
        payload_ptr=payload,
        arena_words=len(arena),
        payload_words=len(payload),
    )


@prepared
def prepare(
    slots: Tensor,
    row_start: Tensor,
    draws: Tensor,
    tokens: Tensor,
    num_computed: Tensor,
    num_drafts: Tensor,
    token_ids: Tensor,
    positions: Tensor,
    row_slots: Tensor,
    query_start: Tensor,
    lengths: Tensor,
    draw_rows: Tensor,
    draw_slots: Tensor,
    draw_lengths: Tensor,
) -> None:
    """Write a step's rows: the tokens that each request computes, their positions and its slot.

    slots         [requests]             -1: padding
    row_start     [requests + 1]         row at which a request's tokens begin; the last: where all end
    draws         [requests]             rows that draw: 1, and one for each draft that is allowed; 0: none
    tokens        [num_slots, max_len]   known tokens, and drafts behind them
    num_computed, num_drafts  [num_slots]
    A request's rows end with drafts, as many as it has of those that the plan allows. Where it has fewer, the
    rows of all that follow move up. Written, all of it:
    token_ids, positions, row_slots  [rows]  0, 0 and -1 in the rows of padding and beyond the last request
    query_start   [requests + 1]         row_start, less what has moved up
    lengths       [requests]             num_computed and the new tokens; 0 for padding
    draw_rows     [requests, each]       rows whose logits are drawn from, the last known token's first
    draw_slots    [requests, each]       -1 where nothing is drawn
    draw_lengths  [requests, each]       known tokens before the draw, drafts included
    All are int32. Raises ValueError where shapes disagree.
    """
    requests, each = draw_rows.shape
    _check(
        *(slots, tokens),
        starts=(row_start, query_start),
        slots_have=(num_computed, num_drafts),
        requests_have=(draws, lengths),
        draws_have=(draw_rows, draw_slots, draw_lengths),
    )
    if not token_ids.shape == positions.shape == row_slots.shape or token_ids.dim() != 1:
        raise ValueError(
            f"token_ids, positions and row_slots are {list(token_ids.shape)}, {list(positions.shape)} and "
            f"{list(row_slots.shape)}: they have one number a row."
        )
    check_words(token_ids, positions, row_slots)
    tile = pick(ROW_TILES, arch_of(slots.device))
    pieces = min(-(-len(token_ids) // (4 * tile.constants["WIDTH"])), MOST_PIECES)
    launch(
        prepare_kernel,
        (requests + 1, max(pieces, 1)),
        tile=tile,
        slots_ptr=slots,
        row_start_ptr=row_start,
        draws_ptr=draws,
        tokens_ptr=tokens,
        num_computed_ptr=num_computed,
        num_drafts_ptr=num_drafts,
        token_ids_ptr=token_ids,
        positions_ptr=positions,
        row_slots_ptr=row_slots,
        query_start_ptr=query_start,
        lengths_ptr=lengths,
        draw_rows_ptr=draw_rows,
        draw_slots_ptr=draw_slots,
        draw_lengths_ptr=draw_lengths,
        tokens_stride=tokens.stride(0),
        max_len=tokens.shape[1],
        requests=requests,
        rows=len(token_ids),
        each=each,
        DRAFTS=each > 1,
    )


@prepared
def finish(
    slots: Tensor,
    query_start: Tensor,
    drawn: Tensor,
    counts: Tensor,
    tokens: Tensor,
    num_tokens: Tensor,
    num_computed: Tensor,
    num_drafts: Tensor,
) -> None:
    """Advance the slots by a step: its tokens are computed, and the drawn ones are appended.

    drawn         [requests, each]  the token after the last known one, and after each draft; -1: none
    counts        [requests]        written: how many of these came of what they were drawn behind
    num_tokens    [num_slots]       grows by them, up to the length of a slot
    num_computed  [num_slots]       one less than that where tokens were drawn
    num_drafts    [num_slots]       0 then
    A draw behind a draft counts where the draft is what was drawn before it. A row that failed ends the
    count: the next step draws it again, behind nothing but known tokens. The rest is as in `prepare`.
    """
    _check(
        *(slots, tokens),
        starts=(query_start,),
        slots_have=(num_tokens, num_computed, num_drafts),
        requests_have=(counts,),
        draws_have=(drawn,),
    )
    tile = pick(REQUEST_TILES, arch_of(slots.device))
    launch(
        finish_kernel,
        (-(-len(slots) // tile.constants["WIDTH"]),),
        tile=tile,
        slots_ptr=slots,
        query_start_ptr=query_start,
        drawn_ptr=drawn,
        counts_ptr=counts,
        tokens_ptr=tokens,
        num_tokens_ptr=num_tokens,
        num_computed_ptr=num_computed,
        num_drafts_ptr=num_drafts,
        tokens_stride=tokens.stride(0),
        max_len=tokens.shape[1],
        requests=len(slots),
        each=drawn.shape[1],
    )


def _check(
    slots: Tensor,
    tokens: Tensor,
    *,
    starts: tuple[Tensor, ...],
    slots_have: tuple[Tensor, ...],
    requests_have: tuple[Tensor, ...],
    draws_have: tuple[Tensor, ...],
) -> None:
    requests, num_slots = len(slots), len(tokens)
    each = draws_have[0].shape[-1]
    if (
        any(one.shape != (requests + 1,) for one in starts)
        or any(one.shape != (requests,) for one in requests_have)
        or any(one.shape != (requests, each) or not one.is_contiguous() for one in draws_have)
    ):
        raise ValueError(
            f"There are {requests} requests, query_start is {list(starts[-1].shape)} and the others are "
            f"{[list(one.shape) for one in (*requests_have, *draws_have)]}: one number a request, or equally "
            "many of each, and where rows start one more."
        )
    if tokens.dim() != 2 or any(one.shape != (num_slots,) for one in slots_have):
        raise ValueError(
            f"tokens are {list(tokens.shape)}, the slots' numbers {[list(one.shape) for one in slots_have]}: "
            "tokens are [num_slots, max_len], the others [num_slots]."
        )
    check_words(slots, tokens, *starts, *slots_have, *requests_have, *draws_have)


def check_words(*tensors: Tensor) -> None:
    """Raises ValueError where one is not int32, or its words are not adjacent; a single word always is."""
    for tensor in tensors:
        if tensor.dtype != torch.int32 or (tensor.shape[-1] > 1 and tensor.stride(-1) != 1):
            raise ValueError(
                f"A tensor is {tensor.dtype} by strides of {tensor.stride()}: what concerns slots is int32, "
                "one word after the other."
            )
