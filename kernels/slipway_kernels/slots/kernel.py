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


@triton.jit
def _spread(
    request, requests, row_start_ptr, draws_ptr, slots_ptr, num_computed_ptr, num_drafts_ptr, max_len
):
    """Of each request: its slot, the rows that the plan has for drafts, how many of them verify one, and
    where its drafts begin."""
    real = request < requests
    slot = tl.load(slots_ptr + request, mask=real, other=-1)
    active = slot >= 0
    most = tl.maximum(tl.load(draws_ptr + request, mask=real, other=0) - 1, 0)
    begin = tl.load(row_start_ptr + request, mask=real, other=0)
    end = tl.load(row_start_ptr + request + 1, mask=real, other=0)
    known = tl.load(num_computed_ptr + slot, mask=active, other=0) + end - begin - most
    drafts = tl.minimum(tl.load(num_drafts_ptr + slot, mask=active, other=0), max_len - known)
    return slot, most, tl.maximum(tl.minimum(drafts, most), 0), known


@triton.jit(do_not_specialize=["max_len", "requests", "rows", "each"])
def prepare_kernel(
    slots_ptr,  # [requests]  -1: padding
    row_start_ptr,  # [requests + 1]  where every row for a draft verifies one
    draws_ptr,  # [requests]  rows that draw, at most
    tokens_ptr,  # [num_slots, max_len]
    num_computed_ptr,  # [num_slots]
    num_drafts_ptr,  # [num_slots]
    token_ids_ptr,  # [rows]
    positions_ptr,  # [rows]
    row_slots_ptr,  # [rows]
    query_start_ptr,  # [requests + 1]
    lengths_ptr,  # [requests]
    draw_rows_ptr,  # [requests, each]
    draw_slots_ptr,  # [requests, each]
    draw_lengths_ptr,  # [requests, each]
    tokens_stride,
    max_len,
    requests,
    rows,
    each,
    DRAFTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The rows of one request; the programs after the last request write the rows that belong to none.

    Where requests have fewer drafts than the plan allows, what comes after them moves up.
    """
    request = tl.program_id(0)
    begin = tl.load(row_start_ptr + request)
    slots = (slots_ptr, num_computed_ptr, num_drafts_ptr, max_len)
    slot, most, drafts, known = _spread(request, requests, row_start_ptr, draws_ptr, *slots)
    end = tl.load(row_start_ptr + request + 1, mask=request < requests, other=rows)
    if DRAFTS:
        for start in range(0, request, WIDTH):
            before = start + tl.arange(0, WIDTH)
            _, allowed, verified, _ = _spread(
                before, tl.minimum(request, requests), row_start_ptr, draws_ptr, *slots
            )
            begin -= tl.sum(allowed - verified, axis=0)
        if request < requests:
            end = begin + end - tl.load(row_start_ptr + request) - most + drafts
    end = tl.minimum(end, rows)
    computed = tl.where(slot >= 0, known - (end - begin - drafts), 0)
    if tl.program_id(1) == 0:
        tl.store(query_start_ptr + request, begin)
        if request < requests:
            tl.store(lengths_ptr + request, tl.where(slot >= 0, known + drafts, 0))
            draws = (slot >= 0) & (tl.load(draws_ptr + request) > 0)
            for number in range(0, each):
                at = request * each + number
                drawn = draws & (number <= drafts)
                tl.store(draw_rows_ptr + at, tl.maximum(end - 1 - tl.maximum(drafts - number, 0), 0))
                tl.store(draw_slots_ptr + at, tl.where(drawn, slot, -1))
                tl.store(draw_lengths_ptr + at, tl.where(drawn, known + number, 0))
    readable = tl.where(slot >= 0, max_len, 0)  # positions below it have a token
    tokens_ptr += slot.to(tl.int64) * tokens_stride
    for start in range(begin + tl.program_id(1) * WIDTH, end, tl.num_programs(1) * WIDTH):
        row = start + tl.arange(0, WIDTH)
        position = tl.where(slot >= 0, computed + row - begin, 0)
        token = tl.load(tokens_ptr + position, mask=(row < end) & (position < readable), other=0)
        tl.store(token_ids_ptr + row, token, mask=row < end)
        tl.store(positions_ptr + row, position, mask=row < end)
        tl.store(row_slots_ptr + row, slot, mask=row < end)


@triton.jit(do_not_specialize=["max_len", "requests", "each"])
def finish_kernel(
    slots_ptr,  # [requests]  -1: padding
    query_start_ptr,  # [requests + 1]
    drawn_ptr,  # [requests, each]  -1: nothing was drawn
    counts_ptr,  # [requests]
    tokens_ptr,  # [num_slots, max_len]
    num_tokens_ptr,  # [num_slots]
    num_computed_ptr,  # [num_slots]
    num_drafts_ptr,  # [num_slots]
    tokens_stride,
    max_len,
    requests,
    each,
    WIDTH: tl.constexpr,
):
    """Drawn tokens are appended up to max_len, as long as each was drawn behind drafts that were drawn."""
    request = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + request, mask=request < requests, other=-1)
    active = slot >= 0
    known = tl.load(num_tokens_ptr + slot, mask=active, other=0)
    tokens_ptr += slot.to(tl.int64) * tokens_stride + known
    count = tl.zeros([WIDTH], tl.int32)
    accepts = active
    for number in range(0, each):
        token = tl.load(drawn_ptr + request * each + number, mask=accepts, other=-1)
        accepts = accepts & (token >= 0)
        fits = accepts & (known + number < max_len)
        draft = tl.load(tokens_ptr + number, mask=fits, other=-1)
        tl.store(tokens_ptr + number, token, mask=fits)
        count += accepts.to(tl.int32)
        accepts = accepts & (draft == token)
    begin = tl.load(query_start_ptr + request, mask=active, other=0)
    end = tl.load(query_start_ptr + request + 1, mask=active, other=0)
    computed = tl.load(num_computed_ptr + slot, mask=active, other=0) + end - begin
    tl.store(num_computed_ptr + slot, tl.where(count > 0, known + count - 1, computed), mask=active)
    tl.store(num_tokens_ptr + slot, tl.minimum(known + count, max_len), mask=active)
    tl.store(num_drafts_ptr + slot, 0, mask=active)
    tl.store(counts_ptr + request, count, mask=request < requests)
