"""Rows of tokens that adapters have for themselves, in Triton: other than the model's, or behind its.

Bound by latency, as adapters have few such rows: the embedding's are looked up, and by the head's rows are
multiplied whose adapter has them, with results that go to the columns of their tokens.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def own_embedding_kernel(
    ids_ptr,  # [rows] int32
    slots_ptr,  # [rows] int32, -1: padding
    place_of_ptr,  # [slots] int32, -1: none
    row_of_ptr,  # [places, tokens] int32
    table_ptr,  # [places, most, width]
    out_ptr,  # [rows, width]
    row_of_stride,
    table_place_stride,
    table_stride,
    out_stride,
    tokens,
    width,
    WIDTH: tl.constexpr,
):
    """out[row] = table[place of row, row_of[id of row] − 1], where there is one."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    slot, token = tl.load(slots_ptr + row), tl.load(ids_ptr + row)
    place = tl.load(place_of_ptr + slot, mask=slot >= 0, other=-1).to(tl.int64)
    known = (place >= 0) & (token >= 0) & (token < tokens)
    found = tl.load(row_of_ptr + place * row_of_stride + token, mask=known, other=0).to(tl.int64)
    inside = column < tl.where(found > 0, width, 0)
    at = table_ptr + place * table_place_stride + (found - 1) * table_stride + column
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + column, value.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def own_logits_kernel(
    x_ptr,  # [rows, k]
    head_ptr,  # [places, most, k]
    bias_ptr,  # [places, most] fp32
    tokens_ptr,  # [places, most] int32
    counts_ptr,  # [places] int32
    order_ptr,  # [rows] int32
    tiles_ptr,  # [tiles, 3] int32: the place or −1, the first place in order, the number of rows
    out_ptr,  # [rows, columns]
    x_stride,
    head_place_stride,
    head_stride,
    bias_stride,
    tokens_stride,
    counts_stride,
    out_stride,
    k,
    cap,
    CAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[row, tokens[n]] = x[row] · head[n] + bias[n], capped as the model's, all n of the row's place."""
    place = tl.load(tiles_ptr + tl.program_id(0) * 3).to(tl.int64)
    if place < 0:
        return
    most = tl.load(counts_ptr + place * counts_stride)
    if tl.program_id(1) * BLOCK_N >= most:
        return
    first = tl.load(tiles_ptr + tl.program_id(0) * 3 + 1)
    count = tl.load(tiles_ptr + tl.program_id(0) * 3 + 2)
    inside = tl.arange(0, BLOCK_M) < count
    row = tl.load(order_ptr + first + tl.arange(0, BLOCK_M), mask=inside, other=0).to(tl.int64)
    number = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = number < most
    depth = tl.arange(0, BLOCK_K)
    x_at = x_ptr + row[:, None] * x_stride + depth[None, :]
    head_ptr += place * head_place_stride
    head_at = head_ptr + number.to(tl.int64)[:, None] * head_stride + depth[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for at in range(0, k, BLOCK_K):
        x = tl.load(x_at + at, mask=inside[:, None] & (depth < k - at)[None, :], other=0.0)
        head = tl.load(head_at + at, mask=known[:, None] & (depth < k - at)[None, :], other=0.0)
        total = tl.dot(x.to(head.dtype), head.T, total, input_precision="ieee")
    total += tl.load(bias_ptr + place * bias_stride + number, mask=known, other=0.0)[None, :]
    if CAPPED:
        total = cap * (1.0 - 2.0 / (tl.exp(total * (2.0 / cap)) + 1.0))
    token = tl.load(tokens_ptr + place * tokens_stride + number, mask=known, other=0)
    out_at = out_ptr + row[:, None] * out_stride + token[None, :]
    tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=inside[:, None] & known[None, :])
