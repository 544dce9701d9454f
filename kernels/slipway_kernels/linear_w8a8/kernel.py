"""Products of 8-bit operands in Triton, for more rows than linear_bf16's kernel is for: bound by arithmetic.

On Hopper and later TMA fetches both operands, zeros where the matrices end, and the warps
only multiply: a tile of 128 by 256 reads 0.75 bytes for each 64 products. Programs stay and take tile after
tile, so that the first loads of a tile overlap the stores of the one before.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _finish(
    total,  # [rows, columns]
    row,  # [rows]
    column,  # [columns]
    x_scale_ptr,
    w_scale_ptr,
    bias_ptr,
    out_ptr,
    out_stride,
    x_scale_row,
    w_scale_row,
    m,
    n,
    BLOCKS: tl.constexpr,
):
    """What is left to do with a tile's sums: scales, the bias, and the way to memory."""
    y = total.to(tl.float32)
    if not BLOCKS:
        x_scale = tl.load(x_scale_ptr + row * x_scale_row, mask=row < m, other=0.0)
        w_scale = tl.load(w_scale_ptr + column * w_scale_row, mask=column < n, other=0.0)
        y *= x_scale[:, None] * w_scale[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    out_at = out_ptr + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])


@triton.jit(do_not_specialize=["m"])
def tiles_kernel(
    x,  # [m, k]: a TMA descriptor of boxes [BLOCK_M, BLOCK_K], or a pointer
    w,  # [n, k]: a TMA descriptor of boxes [BLOCK_N, BLOCK_K], or a pointer
    x_scale_ptr,  # [m], or by blocks [m, k / 128]
    w_scale_ptr,  # [n], or by blocks [n / 128, k / 128]
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
    INTEGERS: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """out = (x · Wᵀ) · x_scale · w_scale + bias, summed in fp32, or int32 where both are INTEGERS.

    Without BLOCKS Hopper's tensor cores hold the sum of fp8 products throughout, in fewer bits than fp32.
    With BLOCKS each 128 columns of k have scales of their own and their sums are added in fp32; BLOCK_K is
    128 then, and BLOCK_N at most that.
    """
    SUM: tl.constexpr = tl.int32 if INTEGERS else tl.float32
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), rows * columns, tl.num_programs(0), flatten=TMA):
        # GROUP rows of tiles go through all columns before the next: their operands stay in the L2 cache.
        first = tile // (GROUP * columns) * GROUP
        high = min(rows - first, GROUP)
        row_start = (first + tile % (GROUP * columns) % high) * BLOCK_M
        column_start = tile % (GROUP * columns) // high * BLOCK_N
        row = row_start + tl.arange(0, BLOCK_M)
        column = column_start + tl.arange(0, BLOCK_N)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32 if BLOCKS else SUM)
        if BLOCKS:
            x_scale_at = x_scale_ptr + row.to(tl.int64) * x_scale_row
            w_scale_at = w_scale_ptr + column_start // 128 * w_scale_row
            scale = tl.load(x_scale_at, mask=row < m, other=0.0) * tl.load(w_scale_at)
        for start in range(0, k, BLOCK_K):
            if TMA:
                left = x.load([row_start, start])
                right = w.load([column_start, start])
            else:
                depth = start + tl.arange(0, BLOCK_K)
                left_at = x + row.to(tl.int64)[:, None] * x_stride + depth[None, :]
                right_at = w + column.to(tl.int64)[:, None] * w_stride + depth[None, :]
                left = tl.load(left_at, mask=(row < m)[:, None] & (depth < k)[None, :], other=0.0)
                right = tl.load(right_at, mask=(column < n)[:, None] & (depth < k)[None, :], other=0.0)
            if BLOCKS:
                # The next block's scales are on their way while this block is multiplied.
                x_scale_at += x_scale_block
                w_scale_at += w_scale_block
                more = start + BLOCK_K < k
                next_scale = tl.load(x_scale_at, mask=(row < m) & more, other=0.0)
                next_scale *= tl.load(w_scale_at, mask=more, other=0.0)
                total += tl.dot(left, right.T, out_dtype=SUM).to(tl.float32) * scale[:, None]
                scale = next_scale
            else:
                total = tl.dot(left, right.T, total, out_dtype=SUM)
        rest = (x_scale_ptr, w_scale_ptr, bias_ptr, out_ptr, out_stride, x_scale_row, w_scale_row, m, n)
        if BLOCK_N == 256:
            # By halves: what belongs to 256 columns does not fit into the registers beside their sums.
            left_total, right_total = tl.split(tl.reshape(total, (BLOCK_M, 2, 128)).permute(0, 2, 1))
            _finish(left_total, row, column_start + tl.arange(0, 128), *rest, BLOCKS)
            _finish(right_total, row, column_start + 128 + tl.arange(0, 128), *rest, BLOCKS)
        else:
            _finish(total, row, column, *rest, BLOCKS)
