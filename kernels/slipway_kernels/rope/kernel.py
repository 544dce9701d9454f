"""RoPE in Triton, with the norm before it and the cache's write behind it: all between two products.

Bound by memory: it reads each of a row's heads once and writes each once. A program takes some query heads of
one row, or the same number of key and value heads, and holds each head as its pairs and the rest, so that the
rotation needs nothing from another thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.quantize.kernel import stored


@triton.jit
def _load(
    head_ptr,  # [ROWS, 1]
    inside,  # [ROWS, 1]
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """First and second of each pair, [ROWS, PADDED] in fp32."""
    if ADJACENT:
        # Read as they lie, sixteen bytes a thread, and parted in registers.
        column = tl.arange(0, 2 * PADDED)[None, :]
        both = tl.load(head_ptr + column, mask=inside & (column < 2 * HALF), other=0.0)
        first, second = tl.split(tl.reshape(both.to(tl.float32), (ROWS, PADDED, 2)))
    else:
        column = tl.arange(0, PADDED)[None, :]
        within = inside & (column < HALF)
        first = tl.load(head_ptr + column, mask=within, other=0.0).to(tl.float32)
        second = tl.load(head_ptr + HALF + column, mask=within, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _pairs(
    vector_ptr,  # [2 · HALF]
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """First and second of each pair, [PADDED] in fp32.

    They are read in one dimension: as a row they would have a layout of their own, and Triton would move all
    heads through shared memory to it and back.
    """
    pair = tl.arange(0, PADDED)
    vector_ptr += 2 * pair if ADJACENT else pair
    first = tl.load(vector_ptr, mask=pair < HALF, other=0.0).to(tl.float32)
    second = tl.load(vector_ptr + (1 if ADJACENT else HALF), mask=pair < HALF, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _load_rest(
    head_ptr,  # [ROWS, 1]
    inside,  # [ROWS, 1]
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """What is beyond the pairs, [ROWS, REST] in fp32."""
    column = 2 * HALF + tl.arange(0, REST)[None, :]
    return tl.load(head_ptr + column, mask=inside & (column < HEAD_DIM), other=0.0).to(tl.float32)


@triton.jit
def _store(
    head_ptr,  # [ROWS, 1]
    inside,  # [ROWS, 1]
    first,  # [ROWS, PADDED]
    second,  # [ROWS, PADDED]
    rest,  # [ROWS, REST]
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    REST: tl.constexpr,
    ADJACENT: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """The inverse of the loads, in the memory's type; saturated where it has a LIMIT."""
    dtype = head_ptr.dtype.element_ty
    if ADJACENT:
        column = tl.arange(0, 2 * PADDED)[None, :]
        both = stored(tl.interleave(first, second), dtype, LIMIT)
        tl.store(head_ptr + column, both, mask=inside & (column < 2 * HALF))
    else:
        column = tl.arange(0, PADDED)[None, :]
        within = inside & (column < HALF)
        tl.store(head_ptr + column, stored(first, dtype, LIMIT), mask=within)
        tl.store(head_ptr + HALF + column, stored(second, dtype, LIMIT), mask=within)
    column = 2 * HALF + tl.arange(0, REST)[None, :]
    tl.store(head_ptr + column, stored(rest, dtype, LIMIT), mask=inside & (column < HEAD_DIM))


@triton.jit
def _turned(
    head_ptr,  # [HEADS, 1]
    inside,  # [HEADS, 1]
    weight_ptr,  # [HEAD_DIM]  or None
    cos_sin_ptr,  # [HALF, 2], of the row's position  or None
    eps,
    ADD_ONE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    REST: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """Heads with their norm and rotation: (a, b) becomes (a · cos − b · sin, b · cos + a · sin)."""
    # All loads come first: what follows has barriers, and no load would pass them.
    first, second = _load(head_ptr, inside, HEADS, HALF, PADDED, ADJACENT)
    rest = _load_rest(head_ptr, inside, HEAD_DIM, HALF, REST)
    if weight_ptr is not None:
        weight_first, weight_second = _pairs(weight_ptr, HALF, PADDED, ADJACENT)
        beyond = 2 * HALF + tl.arange(0, REST)
        weight_rest = tl.load(weight_ptr + beyond, mask=beyond < HEAD_DIM, other=0.0).to(tl.float32)
    if cos_sin_ptr is not None:
        cos, sin = _pairs(cos_sin_ptr, HALF, PADDED, True)
    if weight_ptr is not None:
        total = tl.sum(first * first + second * second, axis=1) + tl.sum(rest * rest, axis=1)
        scale = tl.rsqrt(total / HEAD_DIM + eps)[:, None]
        if ADD_ONE:
            weight_first, weight_second, weight_rest = weight_first + 1, weight_second + 1, weight_rest + 1
        first *= scale * weight_first[None, :]
        second *= scale * weight_second[None, :]
        rest *= scale * weight_rest[None, :]
    if cos_sin_ptr is not None:
        cos, sin = cos[None, :], sin[None, :]
        first, second = first * cos - second * sin, second * cos + first * sin
    return first, second, rest


@triton.jit
def rope_and_store_kernel(
    q_ptr,  # [rows, heads, HEAD_DIM]
    k_ptr,  # [rows, kv_heads, HEAD_DIM]
    v_ptr,  # [rows, kv_heads, HEAD_DIM]
    out_ptr,  # [rows, heads, HEAD_DIM]
    keys_ptr,  # [pages, kv_heads, block, HEAD_DIM]  or None
    values_ptr,  # [pages, kv_heads, block, HEAD_DIM]  or None
    table_ptr,  # [slots, blocks]  page, or -1: nothing is written  or None
    row_slots_ptr,  # [rows]  -1: nothing is written
    positions_ptr,  # [rows]
    cos_sin_ptr,  # [max_len, HALF, 2]  or None
    q_norm_ptr,  # [HEAD_DIM]  or None
    k_norm_ptr,  # [HEAD_DIM]  or None
    key_scale_ptr,  # [1] or [kv_heads]  or None
    value_scale_ptr,  # [1] or [kv_heads]  or None
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    out_stride,
    out_head_stride,
    key_page_stride,
    key_head_stride,
    key_offset_stride,
    value_page_stride,
    value_head_stride,
    value_offset_stride,
    table_stride,
    scale_stride,
    heads,
    kv_heads,
    block,
    eps,
    KEEP_KEYS: tl.constexpr,
    ADD_ONE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    REST: tl.constexpr,
    ADJACENT: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """Queries go to out, keys and values to their page; KEEP_KEYS leaves the keys in k, too."""
    tiles = tl.cdiv(heads, HEADS) + tl.cdiv(kv_heads, HEADS)
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    # Padding is read like any row and only its writes are masked: no load waits for another to say so.
    slot = tl.load(row_slots_ptr + row).to(tl.int64)
    position = tl.load(positions_ptr + row)
    if cos_sin_ptr is not None:
        cos_sin_ptr += position.to(tl.int64) * (2 * HALF)
    row = row.to(tl.int64)
    if tile < tl.cdiv(heads, HEADS):
        head = tile * HEADS + tl.arange(0, HEADS)[:, None]
        inside = head < heads
        at = q_ptr + row * q_stride + head * q_head_stride
        first, second, rest = _turned(
            at, inside, q_norm_ptr, cos_sin_ptr, eps, ADD_ONE, HEAD_DIM, HEADS, HALF, PADDED, REST, ADJACENT
        )
        # In place, no thread may write before all have read.
        tl.debug_barrier()
        to = out_ptr + row * out_stride + head * out_head_stride
        written = head < tl.where(slot >= 0, heads, 0)
        _store(to, written, first, second, rest, HEAD_DIM, HALF, PADDED, REST, ADJACENT, 0.0)
    else:
        head = (tile - tl.cdiv(heads, HEADS)) * HEADS + tl.arange(0, HEADS)[:, None]
        inside = head < kv_heads
        if keys_ptr is not None:
            at = v_ptr + row * v_stride + head * v_head_stride
            v_first, v_second = _load(at, inside, HEADS, HALF, PADDED, False)
            v_rest = _load_rest(at, inside, HEAD_DIM, HALF, REST)
            block_at = table_ptr + slot * table_stride + position // block
            page = tl.load(block_at, mask=slot >= 0, other=-1).to(tl.int64)
        at = k_ptr + row * k_stride + head * k_head_stride
        first, second, rest = _turned(
            at, inside, k_norm_ptr, cos_sin_ptr, eps, ADD_ONE, HEAD_DIM, HEADS, HALF, PADDED, REST, ADJACENT
        )
        if KEEP_KEYS:
            tl.debug_barrier()
            written = head < tl.where(slot >= 0, kv_heads, 0)
            _store(at, written, first, second, rest, HEAD_DIM, HALF, PADDED, REST, ADJACENT, 0.0)
        if keys_ptr is not None:
            written = head < tl.where(page >= 0, kv_heads, 0)
            if key_scale_ptr is not None:
                scale = tl.load(key_scale_ptr + head * scale_stride, mask=inside, other=1.0)
                first, second, rest = first / scale, second / scale, rest / scale
                scale = tl.load(value_scale_ptr + head * scale_stride, mask=inside, other=1.0)
                v_first, v_second, v_rest = v_first / scale, v_second / scale, v_rest / scale
            offset, kv_head = position % block, head.to(tl.int64)
            keys_ptr += page * key_page_stride + offset * key_offset_stride
            at_key = keys_ptr + kv_head * key_head_stride
            _store(at_key, written, first, second, rest, HEAD_DIM, HALF, PADDED, REST, ADJACENT, LIMIT)
            values_ptr += page * value_page_stride + offset * value_offset_stride
            at_value = values_ptr + kv_head * value_head_stride
            _store(at_value, written, v_first, v_second, v_rest, HEAD_DIM, HALF, PADDED, REST, False, LIMIT)
