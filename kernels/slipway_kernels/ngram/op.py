"""Prompt lookup over request slots on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared, scratch
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.ngram.kernel import draft_kernel, find_kernel
from slipway_kernels.slots.op import check_words

FIND_TILES = (Tile(80, {"WIDTH": 1024, "PIECES": 32}, num_warps=4),)
DRAFT_TILES = (Tile(80, {"WIDTH": 32, "PIECES": 32}, num_warps=1),)


@prepared
def look_up(
    slots: Tensor,
    counts: Tensor,
    tokens: Tensor,
    num_tokens: Tensor,
    num_drafts: Tensor,
    *,
    most: int,
    min_n: int,
    max_n: int,
) -> None:
    """Leave up to `most` drafts behind the known tokens of each slot that has drawn: what followed there.

    slots         [requests]            -1: padding
    counts        [requests]            tokens that each has drawn; where that is 0 nothing changes
    tokens        [num_slots, max_len]  known tokens; drafts are written behind them
    num_tokens    [num_slots]           how many are known
    num_drafts    [num_slots]           written; 0 where nothing suggests itself
    Looked for is the longest n-gram at the end, of min_n to max_n tokens, that also stands before, and of
    several such places the first. All are int32. Raises ValueError where shapes disagree.
    Source: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding.
    """
    requests, num_slots = len(slots), len(tokens)
    if counts.shape != (requests,) or not num_tokens.shape == num_drafts.shape == (num_slots,):
        raise ValueError(
            f"There are {requests} requests and {num_slots} slots, counts are {list(counts.shape)} and the "
            f"slots' numbers {[list(one.shape) for one in (num_tokens, num_drafts)]}: one number each."
        )
    if not 1 <= min_n <= max_n:
        raise ValueError(f"n-grams have {min_n} to {max_n} tokens: give 1 or more, the smaller number first.")
    check_words(slots, counts, tokens, num_tokens, num_drafts)
    arch = arch_of(slots.device)
    find, draft = pick(FIND_TILES, arch), pick(DRAFT_TILES, arch)
    width, most_pieces = find.constants["WIDTH"], find.constants["PIECES"]
    pieces = max(min(-(-tokens.shape[1] // width), most_pieces), 1)
    found = scratch((requests, most_pieces), torch.int64, slots.device)
    launch(
        find_kernel,
        (requests, pieces),
        tile=find,
        slots_ptr=slots,
        counts_ptr=counts,
        tokens_ptr=tokens,
        num_tokens_ptr=num_tokens,
        found_ptr=found,
        tokens_stride=tokens.stride(0),
        max_n=max_n,
    )
    launch(
        draft_kernel,
        (requests,),
        tile=draft,
        slots_ptr=slots,
        counts_ptr=counts,
        found_ptr=found,
        tokens_ptr=tokens,
        num_tokens_ptr=num_tokens,
        num_drafts_ptr=num_drafts,
        tokens_stride=tokens.stride(0),
        max_len=tokens.shape[1],
        pieces=pieces,
        most=most,
        min_n=min_n,
    )
