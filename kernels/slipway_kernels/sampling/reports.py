"""Log-probabilities of tokens, of the untouched rows."""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.sampling.arithmetic import (
    ID_BITS,
    LAST_ID,
    MASS_UNIT,
    NOTHING,
    UNORDERED,
    highest_place_of,
    key_of,
    place_of,
    scaled,
    value_of,
)
from slipway_kernels.sampling.rows import BLOCK, NUM_LOGPROBS, largest_key, sum_of_tiles


@triton.jit
def rank_kernel(
    logits_ptr,  # [rows, vocab]
    logits_stride,
    slots_ptr,  # [rows]
    records_ptr,  # [num_slots, words]  or None, where every row is reported
    records_stride,
    token_ptr,  # [rows]
    raw_tiles_ptr,  # [rows, tiles]
    before_ptr,  # [rows, tiles]
    vocab,
    num_tiles,
    TILE: tl.constexpr,
):
    """By tile: how many tokens come before the row's: greater, or equal with a lower id."""
    row = tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    reported = tl.load(token_ptr + row)
    if records_ptr is not None:
        reported = tl.where(tl.load(records_ptr + slot * records_stride + NUM_LOGPROBS) < 0, -1, reported)
    if reported >= 0:
        logits = logits_ptr + row.to(tl.int64) * logits_stride
        place = place_of(key_of(tl.load(logits + reported).to(tl.float32)), reported)
        tile = row.to(tl.int64) * num_tiles + tl.program_id(0)
        before = row * 0
        if highest_place_of(tl.load(raw_tiles_ptr + tile)) > place:
            token = tl.program_id(0) * TILE + tl.arange(0, TILE)
            inside = token < vocab
            value = tl.load(logits + token, mask=inside, other=-float("inf")).to(tl.float32)
            before = tl.sum((inside & (place_of(key_of(value), token) > place)).to(tl.int32), axis=0)
        tl.store(before_ptr + tile, before)


@triton.jit
def logprob_of(value, top, log_total):
    return (scaled(value, top, 1.0).to(tl.float64) - log_total).to(tl.float32)


@triton.jit
def report_kernel(
    logits_ptr,  # [rows, vocab]
    logits_stride,
    slots_ptr,  # [rows]
    records_ptr,  # [num_slots, words]  or None, where every row is reported
    records_stride,
    token_ptr,  # [rows]
    raw_blocks_ptr,  # [rows, num_blocks]
    raw_tiles_ptr,  # [rows, tiles]
    raw_masses_ptr,  # [rows, tiles]
    before_ptr,  # [rows, tiles]
    failed_ptr,  # [rows]
    logprob_ptr,  # [rows]
    rank_ptr,  # [rows]
    top_ids_ptr,  # [rows, max_top]
    top_logprobs_ptr,  # [rows, max_top]
    max_top,
    vocab,
    num_blocks,
    num_tiles,
    BLOCKS: tl.constexpr,
):
    """log p of the row's token, its rank, and the most likely tokens, best first.

    The block with the largest number left gives the next token, and then notes its next: a round for each
    token, with the notes of the whole row in registers.
    """
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    wanted = max_top
    if records_ptr is not None:
        wanted = tl.load(records_ptr + slot * records_stride + NUM_LOGPROBS)
    top_key = largest_key(raw_tiles_ptr, row, num_tiles)
    reported = tl.load(token_ptr + row)
    drawable = (top_key != UNORDERED) & (top_key != NOTHING)
    if records_ptr is None:
        tl.store(failed_ptr + row, 1 - drawable.to(tl.int32))
    if drawable & (reported >= 0) & (wanted >= 0):
        top = value_of(top_key)
        log_total = tl.log(sum_of_tiles(raw_masses_ptr, row, num_tiles).to(tl.float64) / MASS_UNIT)
        logits = logits_ptr + row.to(tl.int64) * logits_stride
        tl.store(logprob_ptr + row, logprob_of(tl.load(logits + reported).to(tl.float32), top, log_total))
        tl.store(rank_ptr + row, 1 + sum_of_tiles(before_ptr, row, num_tiles).to(tl.int32))
        block = tl.arange(0, BLOCKS)
        noted = raw_blocks_ptr + row.to(tl.int64) * num_blocks + block
        key = tl.load(noted, mask=block < num_blocks, other=NOTHING)
        left = tl.where(block * BLOCK < vocab, place_of(key, block), -(1 << 62))
        past = (top_key.to(tl.int64) + 1) << ID_BITS
        at = row.to(tl.int64) * max_top
        for n in range(0, tl.minimum(tl.minimum(wanted, max_top), vocab)):
            its_block = ((tl.max(left, axis=0) & LAST_ID) ^ LAST_ID).to(tl.int32)
            token = its_block * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(logits + token, mask=token < vocab, other=-float("inf")).to(tl.float32)
            place = tl.where(token < vocab, place_of(key_of(value), token), -(1 << 62))
            best = tl.max(tl.where(place < past, place, -(1 << 62)), axis=0)
            following = tl.max(tl.where(place < best, place, -(1 << 62)), axis=0)
            its_place = tl.where(
                following > -(1 << 62), place_of((following >> ID_BITS).to(tl.int32), its_block), -(1 << 62)
            )
            left = tl.where(block == its_block, its_place, left)
            past = best
            logprob = logprob_of(value_of((best >> ID_BITS).to(tl.int32)), top, log_total)
            tl.store(top_ids_ptr + at + n, ((best & LAST_ID) ^ LAST_ID).to(tl.int32))
            tl.store(top_logprobs_ptr + at + n, logprob)
        for n in range(tl.minimum(tl.minimum(wanted, max_top), vocab), max_top):
            tl.store(top_ids_ptr + at + n, -1)
            tl.store(top_logprobs_ptr + at + n, -float("inf"))
