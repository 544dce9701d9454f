"""Products of few rows in Triton, of 16-bit or 8-bit operands: bound by the reading of the weight.

A program owns BLOCK_N rows of the weight over all of k, so that no partial sums leave it, and its warps
split k among themselves: the tiles have a third dimension, a part of k for each warp, and the parts are
added at the end. Were the warps to split the columns instead, a program would have to own four times as
many, and a weight of 4096 rows would occupy half of an H100's multiprocessors.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["m"])
def few_rows_kernel(
    x_ptr,  # [m, k]
    w_ptr,  # [n, k]
    x_scale_ptr,  # [m], or by blocks [m, k / 128], or None
    w_scale_ptr,  # [n], or by blocks [n / 128, k / 128], or None
    bias_ptr,  # [n]  or None
    out_ptr,  # [m, n]
    x_stride,
    w_stride,
    out_stride,
    x_scale_row,
    x_scale_block,
    w_scale_row,
    w_scale_block,
    m,
    n,
    k,
    BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
):
    """out = (x · Wᵀ) · x_scale · w_scale + bias, summed in fp32, or int32 for int8.

    With BLOCKS each 128 columns of k have scales of their own; BLOCK_K is 128 then.
    """
    SUM: tl.constexpr = tl.int32 if x_ptr.dtype.element_ty == tl.int8 else tl.float32
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.arange(0, PARTS)
    # All warps' loads together must not reach past a tile's rows, so BLOCK_K is 64 bytes for each warp:
    # triton 3.9 would else lay the parts between the rows in shared memory, and reads of it would conflict.
    depth = part[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    x_at = x_ptr + row.to(tl.int64)[None, :, None] * x_stride + depth[:, None, :]
    w_at = w_ptr + column.to(tl.int64)[None, None, :] * w_stride + depth[:, :, None]
    total = tl.zeros((PARTS, BLOCK_M, BLOCK_N), tl.float32 if BLOCKS else SUM)
    if BLOCKS:
        blocks = tl.cdiv(k, 128)
        x_scale_at = x_scale_ptr + row[None, :] * x_scale_row + part[:, None] * x_scale_block
        w_scale_at = w_scale_ptr + tl.program_id(0) * BLOCK_N // 128 * w_scale_row + part * w_scale_block
        scale = tl.load(x_scale_at, mask=(row < m)[None, :] & (part < blocks)[:, None], other=0.0)
        scale *= tl.load(w_scale_at, mask=part < blocks, other=0.0)[:, None]
    for start in range(0, k, PARTS * BLOCK_K):
        inside = depth < k - start
        x = tl.load(x_at + start, mask=(row < m)[None, :, None] & inside[:, None, :], other=0.0)
        w = tl.load(w_at + start, mask=(column < n)[None, None, :] & inside[:, :, None], other=0.0)
        if BLOCKS:
            # The next step's scales are on their way while this step's parts are multiplied.
            block = start // 128 + PARTS + part
            x_scale_at += PARTS * x_scale_block
            w_scale_at += PARTS * w_scale_block
            next_scale = tl.load(x_scale_at, mask=(row < m)[None, :] & (block < blocks)[:, None], other=0.0)
            next_scale *= tl.load(w_scale_at, mask=block < blocks, other=0.0)[:, None]
            total += tl.dot(x, w, out_dtype=SUM).to(tl.float32) * scale[:, :, None]
            scale = next_scale
        else:
            total = tl.dot(x, w, total, out_dtype=SUM)
    y = tl.sum(total, axis=0).to(tl.float32)
    if not BLOCKS and x_scale_ptr is not None:
        x_scale = tl.load(x_scale_ptr + row * x_scale_row, mask=row < m, other=0.0)
        w_scale = tl.load(w_scale_ptr + column * w_scale_row, mask=column < n, other=0.0)
        y *= x_scale[:, None] * w_scale[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    out_at = out_ptr + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])
