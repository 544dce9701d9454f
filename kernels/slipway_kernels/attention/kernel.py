"""Attention over pages in Triton: one kernel for requests of few queries, one for chunks, and a merge.

All run the loop in `attend`: a tile of queries stays in registers while tiles of keys and values stream
through shared memory, with an online softmax (Dao et al. 2022). The query heads that share a key
head are rows of one tile, so that keys are read once for all of them. Scores are kept in units of log 2,
whose exponential is one instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.attention.kernel_inner import (
    attend,
    operand,
    pointers,
    slopes_of,
    softmax_start,
    stored_scale,
)

# Below every score, and finite: a row that has seen nothing yet must not subtract infinities.
LEAST = tl.constexpr(-1e30)


@triton.jit
def _share(length, count, window, splits, SPAN: tl.constexpr):
    """The first position that the last `count` of `length` queries see, and how many a split takes."""
    first = 0
    if window is not None:
        first = tl.maximum(length - count + 1 - window, 0)
    return first, tl.cdiv(tl.cdiv(length - first, splits), SPAN) * SPAN


@triton.jit(do_not_specialize=["window", "splits", "queries"])
def decode_kernel(
    q_ptr,  # [tokens, heads, head_dim]
    keys_ptr,  # [pages, kv_heads, block, head_dim]
    values_ptr,
    block_table_ptr,  # [num_slots, max_blocks]
    slots_ptr,  # [requests]
    query_start_ptr,  # [requests + 1]
    lengths_ptr,  # [requests]
    slopes_ptr,  # [heads]  or None
    sinks_ptr,  # [heads]  or None
    key_scale_ptr,  # [kv_heads] by SCALE_STRIDE, or None
    value_scale_ptr,
    out_ptr,  # [tokens, heads, head_dim]
    partial_ptr,  # [requests, queries, heads, splits, head_dim] fp32, or None where one split takes all
    lse_ptr,  # [requests, queries, heads, splits] fp32: log 2 of each split's sum of 2^score
    q_token_stride,
    q_head_stride,
    page_stride,
    kv_head_stride,
    token_stride,
    block_table_stride,
    out_token_stride,
    out_head_stride,
    scale,  # times log2(e)
    softcap,
    window,
    splits,
    queries,
    GROUP: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD: tl.constexpr,
    BYTES: tl.constexpr,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    SEVERAL: tl.constexpr,
):
    """softmax(scale · q · Kᵀ + mask) · V of one request, one key head and one split of its positions.

    Bound by reading keys and values: every loop has the next tiles under way. A split that is past the
    request's end leaves nothing, and the merge knows. Where requests have SEVERAL queries, up to `queries`,
    a tile has the group's rows of one after the other, and is masked at its edges.
    """
    columns = GROUP
    count = 1
    seen = None
    request = tl.program_id(1)
    query_start = tl.load(query_start_ptr + request)
    if SEVERAL:
        columns = GROUP * queries
        count = tl.load(query_start_ptr + request + 1) - query_start
        seen = window
    tiles = (columns + ROWS - 1) // ROWS
    kv_head = tl.program_id(0) // tiles
    split = tl.program_id(2)
    length = tl.load(lengths_ptr + request)
    slot = tl.load(slots_ptr + request)
    if slot < 0:
        length = 0
    first, span = _share(length, count, window, splits, SPAN)
    begin = first + split * span
    end = tl.minimum(begin + span, length)
    if begin >= end:
        return
    row = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    known = row < GROUP * count
    index = row // GROUP if SEVERAL else tl.full([ROWS], 0, tl.int32)
    head = kv_head * GROUP + (row % GROUP if SEVERAL else row)
    column = tl.arange(0, HEAD)
    mask = known[:, None] & (column < HEAD_DIM)[None, :]
    token = query_start + index
    q = tl.load(pointers(q_ptr, token, head, q_token_stride, q_head_stride, HEAD), mask=mask, other=0.0)
    total, peak = softmax_start(sinks_ptr, head, known, split == 0, ROWS)
    if SEVERAL:
        peak = tl.maximum(peak, LEAST)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    kv_offset = kv_head.to(tl.int64) * kv_head_stride
    query = length - count + index
    block_table_ptr += slot.to(tl.int64) * block_table_stride
    acc, total, peak = attend(
        *(acc, total, peak, operand(q, keys_ptr), query, length - count, length - 1, begin, end),
        *(keys_ptr + kv_offset, values_ptr + kv_offset, block_table_ptr, page_stride, token_stride),
        scale * stored_scale(key_scale_ptr, kv_head, SCALE_STRIDE, BYTES),
        softcap,
        slopes_of(slopes_ptr, head, known),
        seen,
        *(SEVERAL, TILE, BLOCK, HEAD_DIM, HEAD, BYTES, False, FIRST),
    )
    if SEVERAL:
        total = tl.where(total == 0.0, 1.0, total)  # of rows that see nothing of this split
    acc *= (stored_scale(value_scale_ptr, kv_head, SCALE_STRIDE, BYTES) / total)[:, None]
    if partial_ptr is None:
        at = pointers(out_ptr, token, head, out_token_stride, out_head_stride, HEAD)
        tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        heads = tl.num_programs(0) // tiles * GROUP
        if SEVERAL:
            request = request * queries + index
        entry = (request * heads + head).to(tl.int64) * splits + split
        tl.store(partial_ptr + entry[:, None] * HEAD_DIM + column[None, :], acc, mask=mask)
        tl.store(lse_ptr + entry, peak + tl.log2(total), mask=known)


@triton.jit(do_not_specialize=["window", "splits", "queries"])
def merge_kernel(
    partial_ptr,  # [requests, queries, heads, splits, head_dim] fp32
    lse_ptr,  # [requests, queries, heads, splits] fp32
    slots_ptr,  # [requests]
    query_start_ptr,  # [requests + 1]
    lengths_ptr,  # [requests]
    out_ptr,  # [tokens, heads, head_dim]
    out_token_stride,
    out_head_stride,
    window,
    splits,
    queries,
    HEAD_DIM: tl.constexpr,
    HEAD: tl.constexpr,
    SPAN: tl.constexpr,
    SEVERAL: tl.constexpr,
    SPLITS: tl.constexpr,  # loaded at a time
):
    """Σ 2^lse · partial / Σ 2^lse over the splits that one request has, for one query and head."""
    request = tl.program_id(0)
    count = 1
    index = 0
    if SEVERAL:
        request = tl.program_id(0) // queries
        index = tl.program_id(0) % queries
        count = tl.load(query_start_ptr + request + 1) - tl.load(query_start_ptr + request)
    head = tl.program_id(1)
    length = tl.load(lengths_ptr + request)
    if tl.load(slots_ptr + request) < 0:
        length = 0
    if (length == 0) | (index >= count):
        return
    first, span = _share(length, count, window, splits, SPAN)
    used = tl.cdiv(length - first, span)
    entry = (tl.program_id(0) * tl.num_programs(1) + head).to(tl.int64) * splits
    column = tl.arange(0, HEAD)
    acc = tl.zeros([HEAD], tl.float32)
    total = 0.0
    peak = float("-inf")
    for start in range(0, used, SPLITS):
        split = start + tl.arange(0, SPLITS)
        lse = tl.load(lse_ptr + entry + split, mask=split < used, other=float("-inf"))
        at = partial_ptr + (entry + split)[:, None] * HEAD_DIM + column[None, :]
        partial = tl.load(at, mask=(split < used)[:, None] & (column < HEAD_DIM)[None, :], other=0.0)
        highest = tl.maximum(peak, tl.max(lse, 0))
        decay = tl.exp2(peak - highest)
        weight = tl.exp2(lse - highest)
        total = total * decay + tl.sum(weight, 0)
        acc = acc * decay + tl.sum(weight[:, None] * partial, 0)
        peak = highest
    token = (tl.load(query_start_ptr + request) + index).to(tl.int64)
    at = out_ptr + token * out_token_stride + head.to(tl.int64) * out_head_stride + column
    tl.store(at, (acc / total).to(out_ptr.dtype.element_ty), mask=column < HEAD_DIM)


@triton.jit
def _request_of(tile, query_start_ptr, first_request, requests, QUERIES: tl.constexpr):
    """Which request a tile of QUERIES queries is of, and which of its tiles it is.

    A request may begin one tile for every QUERIES rows before it and one for every request before it: at
    least as many as it needs, known from its start alone.
    """
    base = tl.load(query_start_ptr + first_request)
    before = 0
    for begin in range(0, requests, 128):
        index = begin + tl.arange(0, 128)
        known = index < requests
        start = tl.load(query_start_ptr + first_request + index, mask=known, other=0) - base
        before += tl.sum((known & (start // QUERIES + index <= tile)).to(tl.int32), 0)
    request = before - 1
    start = tl.load(query_start_ptr + first_request + request) - base
    return first_request + request, tile - (start // QUERIES + request)


@triton.jit(do_not_specialize=["window", "first_request", "requests"])
def prefill_kernel(
    q_ptr,  # [tokens, heads, head_dim]
    keys_ptr,  # [pages, kv_heads, block, head_dim], or [tokens, kv_heads, head_dim] without a table
    values_ptr,
    block_table_ptr,  # [num_slots, max_blocks]  or None
    slots_ptr,  # [requests]  or None
    query_start_ptr,  # [requests + 1]
    lengths_ptr,  # [requests]  or None: as many positions as queries
    slopes_ptr,  # [heads]  or None
    sinks_ptr,  # [heads]  or None
    key_scale_ptr,  # [kv_heads] by SCALE_STRIDE, or None
    value_scale_ptr,
    out_ptr,  # [tokens, heads, head_dim]
    q_token_stride,
    q_head_stride,
    page_stride,
    kv_head_stride,
    token_stride,
    block_table_stride,
    out_token_stride,
    out_head_stride,
    scale,  # times log2(e)
    softcap,
    window,
    first_request,
    requests,
    kv_heads,
    GROUP: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD: tl.constexpr,
    BYTES: tl.constexpr,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    TMA: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """softmax(scale · q · Kᵀ + mask) · V of one key head and of as many queries as its heads leave rows.

    Bound by the tensor cores. Keys that no row of the tile sees are skipped, and only tiles of keys at the
    edge of the window or at the diagonal are masked. Late tiles, which see most, start first, so that the
    last to run are short. Where it is not CAUSAL, rows see the keys after them, too.
    """
    HEADS: tl.constexpr = GROUP if GROUP < ROWS else ROWS
    QUERIES: tl.constexpr = ROWS // HEADS
    TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    # One dimension: of tiles there may be more than the 65535 programs that the others take.
    column = tl.program_id(0) % (kv_heads * TILES)
    kv_head = column // TILES
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // (kv_heads * TILES)
    request, tile = _request_of(tile, query_start_ptr, first_request, requests, QUERIES)
    query_start = tl.load(query_start_ptr + request)
    count = tl.load(query_start_ptr + request + 1) - query_start
    kv_offset = kv_head.to(tl.int64) * kv_head_stride
    if block_table_ptr is None:
        kv_offset += query_start.to(tl.int64) * token_stride
    else:
        slot = tl.load(slots_ptr + request)
        if slot < 0:
            count = 0
        block_table_ptr += slot.to(tl.int64) * block_table_stride
    if tile * QUERIES >= count:
        return
    computed = 0
    if lengths_ptr is not None:
        computed = tl.load(lengths_ptr + request) - count

    row = tl.arange(0, ROWS)
    index = tile * QUERIES + row // HEADS
    of_group = (column % TILES) * HEADS + row % HEADS
    known = (row < QUERIES * HEADS) & (index < count) & (of_group < GROUP)
    head = kv_head * GROUP + of_group
    mask = known[:, None] & (tl.arange(0, HEAD) < HEAD_DIM)[None, :]
    token = query_start + index
    q = tl.load(pointers(q_ptr, token, head, q_token_stride, q_head_stride, HEAD), mask=mask, other=0.0)
    keys = keys_ptr + kv_offset
    values = values_ptr + kv_offset
    if TMA:
        keys = tl.make_tensor_descriptor(keys, [count, HEAD_DIM], [token_stride, 1], [TILE, HEAD])
        values = tl.make_tensor_descriptor(values, [count, HEAD_DIM], [token_stride, 1], [TILE, HEAD])
    total, peak = softmax_start(sinks_ptr, head, known, True, ROWS)
    acc = tl.zeros([ROWS, HEAD], tl.float32)

    lowest = computed + tile * QUERIES
    limit = computed + tl.minimum((tile + 1) * QUERIES, count)
    newest = limit - 1
    query = tl.minimum(computed + index, newest)
    if not CAUSAL:
        limit = computed + count
        if window is not None:
            limit = tl.minimum(limit, newest + window)
    first = 0
    if window is not None:
        first = tl.maximum(lowest - window + 1, 0)
    acc, total, peak = attend(
        *(acc, total, peak, operand(q, keys_ptr), query, lowest, newest, first, limit),
        *(keys, values, block_table_ptr, page_stride, token_stride),
        scale * stored_scale(key_scale_ptr, kv_head, SCALE_STRIDE, BYTES),
        softcap,
        slopes_of(slopes_ptr, head, known),
        window,
        *(CAUSAL, TILE, BLOCK, HEAD_DIM, HEAD, BYTES, TMA, FIRST),
    )
    acc *= (stored_scale(value_scale_ptr, kv_head, SCALE_STRIDE, BYTES) / total)[:, None]
    at = pointers(out_ptr, token, head, out_token_stride, out_head_stride, HEAD)
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=mask)
