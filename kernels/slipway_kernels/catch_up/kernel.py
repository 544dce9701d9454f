"""Slots of a model that guesses for another, in Triton: a program for many requests, bound by latency.

What differs from step to step is not specialized for, so that serving compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["requests", "max_len", "length", "block"])
def catch_up_kernel(
    slots_ptr,  # [requests]  -1: padding
    row_start_ptr,  # [requests + 1]  rows that a request may have
    ahead_ptr,  # [requests]  drafts that may be guessed
    num_tokens_ptr,  # [num_slots]
    num_computed_ptr,  # [num_slots]  by the target
    own_computed_ptr,  # [num_slots]  by the model that guesses
    own_rows_ptr,  # [num_slots]
    wanted_ptr,  # [num_slots]
    requests,
    max_len,
    length,
    block,
    WIDTH: tl.constexpr,
):
    """Up to the last known token where the target drew and drafts are wanted, else to the end of the last
    whole block; own tokens beyond what the target has computed were rejected."""
    request = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + request, mask=request < requests, other=-1)
    active = slot >= 0
    known = tl.load(num_tokens_ptr + slot, mask=active, other=0)
    computed = tl.load(num_computed_ptr + slot, mask=active, other=0)
    drafts = tl.minimum(tl.load(ahead_ptr + request, mask=active, other=0), max_len - known)
    drafts = tl.maximum(tl.minimum(drafts, length + 1 - known), 0)
    drafts = tl.where(known == computed + 1, drafts, 0)
    own = tl.minimum(tl.load(own_computed_ptr + slot, mask=active, other=0), computed)
    end = tl.where(drafts > 0, known, tl.minimum(computed, length) // block * block)
    left = tl.maximum(end - own, 0)
    begin = tl.load(row_start_ptr + request, mask=active, other=0)
    rows = tl.minimum(left, tl.load(row_start_ptr + request + 1, mask=active, other=0) - begin)
    tl.store(own_computed_ptr + slot, own, mask=active)
    tl.store(own_rows_ptr + slot, rows, mask=active)
    tl.store(wanted_ptr + slot, tl.where(rows == left, drafts, 0), mask=active)


@triton.jit(do_not_specialize=["requests"])
def last_rows_kernel(
    slots_ptr,  # [requests]  -1: padding
    query_start_ptr,  # [requests + 1]
    lengths_ptr,  # [requests]
    num_drafts_ptr,  # [num_slots]
    wanted_ptr,  # [num_slots]
    draw_rows_ptr,  # [requests]
    draw_slots_ptr,  # [requests]
    draw_lengths_ptr,  # [requests]
    requests,
    WIDTH: tl.constexpr,
):
    """Each request draws from its last row, where it wants more drafts than it has."""
    request = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    real = request < requests
    slot = tl.load(slots_ptr + request, mask=real, other=-1)
    active = slot >= 0
    wanted = tl.load(wanted_ptr + slot, mask=active, other=0)
    draws = active & (wanted > tl.load(num_drafts_ptr + slot, mask=active, other=0))
    end = tl.load(query_start_ptr + request + 1, mask=real, other=0)
    length = tl.load(lengths_ptr + request, mask=draws, other=0)
    tl.store(draw_rows_ptr + request, tl.maximum(end - 1, 0), mask=real)
    tl.store(draw_slots_ptr + request, tl.where(draws, slot, -1), mask=real)
    tl.store(draw_lengths_ptr + request, length, mask=real)


@triton.jit(do_not_specialize=["requests"])
def append_kernel(
    slots_ptr,  # [requests]  -1: padding
    drawn_ptr,  # [requests]  -1: nothing was drawn
    tokens_ptr,  # [num_slots, max_len]
    num_tokens_ptr,  # [num_slots]
    num_drafts_ptr,  # [num_slots]
    own_computed_ptr,  # [num_slots]
    own_rows_ptr,  # [num_slots]
    wanted_ptr,  # [num_slots]
    tokens_stride,
    requests,
    WIDTH: tl.constexpr,
):
    """A draw is one more draft, which the next pass computes where more are wanted; nothing follows a row
    that failed."""
    request = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + request, mask=request < requests, other=-1)
    active = slot >= 0
    rows = tl.load(own_rows_ptr + slot, mask=active, other=0)
    own = tl.load(own_computed_ptr + slot, mask=active, other=0)
    tl.store(own_computed_ptr + slot, own + rows, mask=active)
    token = tl.load(drawn_ptr + request, mask=active, other=-1)
    found = tl.load(num_drafts_ptr + slot, mask=active, other=0)
    wanted = tl.load(wanted_ptr + slot, mask=active, other=0)
    good = active & (wanted > found) & (token >= 0)
    known = tl.load(num_tokens_ptr + slot, mask=good, other=0)
    tl.store(tokens_ptr + slot.to(tl.int64) * tokens_stride + known + found, token, mask=good)
    found += good.to(tl.int32)
    wanted = tl.where(good, wanted, 0)
    tl.store(num_drafts_ptr + slot, found, mask=active)
    tl.store(wanted_ptr + slot, wanted, mask=active)
    tl.store(own_rows_ptr + slot, (wanted > found).to(tl.int32), mask=active)
