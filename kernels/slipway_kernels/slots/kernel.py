"""The worker's state on the device in Triton: changed, read into a step's rows, advanced by its tokens.

All of it is bound by latency: a few loads that depend on each other. What differs from step to step is not
specialized for, so that serving compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["arena_words", "payload_words"])
def apply_runs_kernel(
    arena_ptr,  # [arena_words]
    runs_ptr,  # [runs, 3]: destination word, source word, count
    payload_ptr,  # [payload_words]
    arena_words,
    payload_words,
    WIDTH: tl.constexpr,
):
    """arena[destination + i] = payload[source + i]; the programs of a run take pieces of it in turn."""
    runs_ptr += tl.program_id(0).to(tl.int64) * 3
    destination = tl.load(runs_ptr).to(tl.int64)
    source = tl.load(runs_ptr + 1).to(tl.int64)
    count = tl.load(runs_ptr + 2).to(tl.int32)
    for start in range(tl.program_id(1) * WIDTH, count, tl.num_programs(1) * WIDTH):
        word = start + tl.arange(0, WIDTH)
        inside = (word < count) & (source + word < payload_words) & (destination + word < arena_words)
        words = tl.load(payload_ptr + source + word, mask=inside)
        tl.store(arena_ptr + destination + word, words, mask=inside)


@triton.jit(do_not_specialize=["requests", "rows"])
def prepare_kernel(
    slots_ptr,  # [requests]  -1: padding
    query_start_ptr,  # [requests + 1]
    tokens_ptr,  # [num_slots, max_len]
    num_computed_ptr,  # [num_slots]
    token_ids_ptr,  # [rows]
    positions_ptr,  # [rows]
    row_slots_ptr,  # [rows]
    lengths_ptr,  # [requests]
    last_rows_ptr,  # [requests]
    tokens_stride,
    max_len,
    requests,
    rows,
    WIDTH: tl.constexpr,
):
    """The rows of one request; the programs after the last request write the rows that belong to none."""
    request = tl.program_id(0)
    real = request < requests
    slot = tl.load(slots_ptr + request, mask=real, other=-1)
    begin = tl.load(query_start_ptr + request)
    end = tl.minimum(tl.load(query_start_ptr + request + 1, mask=real, other=rows), rows)
    computed = tl.load(num_computed_ptr + slot, mask=slot >= 0, other=0)
    known = tl.where(slot >= 0, max_len, 0)  # positions below it have a token
    if tl.program_id(1) == 0:
        tl.store(lengths_ptr + request, tl.where(slot >= 0, computed + end - begin, 0), mask=real)
        tl.store(last_rows_ptr + request, tl.maximum(end - 1, 0), mask=real)
    tokens_ptr += slot.to(tl.int64) * tokens_stride
    for start in range(begin + tl.program_id(1) * WIDTH, end, tl.num_programs(1) * WIDTH):
        row = start + tl.arange(0, WIDTH)
        position = tl.where(slot >= 0, computed + row - begin, 0)
        token = tl.load(tokens_ptr + position, mask=(row < end) & (position < known), other=0)
        tl.store(token_ids_ptr + row, token, mask=row < end)
        tl.store(positions_ptr + row, position, mask=row < end)
        tl.store(row_slots_ptr + row, slot, mask=row < end)


@triton.jit(do_not_specialize=["requests"])
def finish_kernel(
    slots_ptr,  # [requests]  -1: padding
    query_start_ptr,  # [requests + 1]
    drawn_ptr,  # [requests]  -1: nothing was drawn
    tokens_ptr,  # [num_slots, max_len]
    num_tokens_ptr,  # [num_slots]
    num_computed_ptr,  # [num_slots]
    tokens_stride,
    max_len,
    requests,
    WIDTH: tl.constexpr,
):
    """num_computed += what the step computed; a drawn token is appended up to max_len."""
    request = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + request, mask=request < requests, other=-1)
    active = slot >= 0
    begin = tl.load(query_start_ptr + request, mask=active, other=0)
    end = tl.load(query_start_ptr + request + 1, mask=active, other=0)
    computed = tl.load(num_computed_ptr + slot, mask=active, other=0)
    tl.store(num_computed_ptr + slot, computed + end - begin, mask=active)
    drawn = tl.load(drawn_ptr + request, mask=active, other=-1)
    known = tl.load(num_tokens_ptr + slot, mask=active, other=0)
    appends = active & (drawn >= 0) & (known < max_len)
    tl.store(tokens_ptr + slot.to(tl.int64) * tokens_stride + known, drawn.to(tl.int32), mask=appends)
    tl.store(num_tokens_ptr + slot, known + 1, mask=appends)
