"""RoPE in Triton, with the norm before it and the cache's write behind it: all between two products.

Bound by memory: it reads each of a row's heads once and writes each once. A program takes some query heads of
one row, or the same number of key and value heads, and holds each head as its pairs and the rest, so that the
rotation needs nothing from another thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.rope.kernel_heads import load_pairs, load_rest, store_head, turned


@triton.jit
def rope_and_store_kernel(
    q_ptr,  # [rows, heads, HEAD_DIM]
    k_ptr,  # [rows, kv_heads, HEAD_DIM]
    v_ptr,  # [rows, kv_heads, HEAD_DIM]
    out_ptr,  # [rows, heads, HEAD_DIM]
    keys_ptr,  # [pages, kv_heads, block, HEAD_DIM]  or None
    values_ptr,  # [pages, kv_heads, block, HEAD_DIM]  or None
    block_table_ptr,  # [slots, blocks]  page, or -1: nothing is written  or None
    row_slots_ptr,  # [rows]  -1: nothing is written
    positions_ptr,  # [rows]
    cos_sin_ptr,  # [max_len, HALF, 2]  or None; several where slots choose
    rotation_of_ptr,  # [slots]  or None
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
    block_table_stride,
    rotation_stride,
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
        if rotation_of_ptr is not None:
            chosen = tl.load(rotation_of_ptr + slot, mask=slot >= 0, other=0)
            cos_sin_ptr += chosen.to(tl.int64) * rotation_stride
    row = row.to(tl.int64)
    if tile < tl.cdiv(heads, HEADS):
        head = tile * HEADS + tl.arange(0, HEADS)[:, None]
        inside = head < heads
        at = q_ptr + row * q_stride + head * q_head_stride
        first, second, rest = turned(
            at, inside, q_norm_ptr, cos_sin_ptr, eps, ADD_ONE, HEAD_DIM, HEADS, HALF, PADDED, REST, ADJACENT
        )
        # In place, no thread may write before all have read.
        tl.debug_barrier()
        to = out_ptr + row * out_stride + head * out_head_stride
        written = head < tl.where(slot >= 0, heads, 0)
        store_head(to, written, first, second, rest, HEAD_DIM, HALF, PADDED, REST, ADJACENT, 0.0)
    else:
        head = (tile - tl.cdiv(heads, HEADS)) * HEADS + tl.arange(0, HEADS)[:, None]
        inside = head < kv_heads
        if keys_ptr is not None:
            at = v_ptr + row * v_stride + head * v_head_stride
            v_first, v_second = load_pairs(at, inside, HEADS, HALF, PADDED, False)
            v_rest = load_rest(at, inside, HEAD_DIM, HALF, REST)
            block_at = block_table_ptr + slot * block_table_stride + position // block
            page = tl.load(block_at, mask=slot >= 0, other=-1).to(tl.int64)
        at = k_ptr + row * k_stride + head * k_head_stride
        first, second, rest = turned(
            at, inside, k_norm_ptr, cos_sin_ptr, eps, ADD_ONE, HEAD_DIM, HEADS, HALF, PADDED, REST, ADJACENT
        )
        if KEEP_KEYS:
            tl.debug_barrier()
            written = head < tl.where(slot >= 0, kv_heads, 0)
            store_head(at, written, first, second, rest, HEAD_DIM, HALF, PADDED, REST, ADJACENT, 0.0)
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
            store_head(at_key, written, first, second, rest, HEAD_DIM, HALF, PADDED, REST, ADJACENT, LIMIT)
            values_ptr += page * value_page_stride + offset * value_offset_stride
            at_value = values_ptr + kv_head * value_head_stride
            store_head(
                at_value, written, v_first, v_second, v_rest, HEAD_DIM, HALF, PADDED, REST, False, LIMIT
            )
