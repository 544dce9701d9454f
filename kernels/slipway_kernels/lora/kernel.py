"""Low-rank adapters in Triton: what each row's adapter adds to a product, for rows of many adapters at once.

Both kernels are bound by latency and by the reading of x, h and the adapters, hardly by arithmetic. A program
has the rows of one adapter, gathered by an index; k is cut into SPLITS parts for shrink, since a rank has too
few columns to occupy the device, and expand adds the parts as it loads them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def shrink_kernel(
    x_ptr,  # [rows, k]
    a_ptr,  # [adapters, width, k]; width = slices · rank
    ranks_ptr,  # [adapters] int32
    order_ptr,  # [rows] int32
    tiles_ptr,  # [tiles, 3] int32: the adapter or −1, the first place in order, the number of rows
    h_ptr,  # [SPLITS, rows, width] fp32
    x_stride,
    a_adapter_stride,
    a_stride,
    h_split_stride,
    h_stride,
    rank,
    width,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """h[split, row] = x[row] · A[adapter of row]ᵀ over the split's part of k, summed in fp32."""
    adapter = tl.load(tiles_ptr + tl.program_id(0) * 3).to(tl.int64)
    if adapter < 0:
        return
    first = tl.load(tiles_ptr + tl.program_id(0) * 3 + 1)
    count = tl.load(tiles_ptr + tl.program_id(0) * 3 + 2)
    inside = tl.arange(0, BLOCK_M) < count
    row = tl.load(order_ptr + first + tl.arange(0, BLOCK_M), mask=inside, other=0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    # An adapter of a smaller rank than the pool's has nothing beyond its own in each slice: it is not read.
    known = (column < width) & (column % rank < tl.load(ranks_ptr + adapter))
    part = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLITS) * BLOCK_K
    start = tl.program_id(2) * part
    depth = tl.arange(0, BLOCK_K)
    x_at = x_ptr + row[:, None] * x_stride + depth[None, :]
    a_at = a_ptr + adapter * a_adapter_stride + column.to(tl.int64)[:, None] * a_stride + depth[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for at in range(start, min(start + part, k), BLOCK_K):
        x = tl.load(x_at + at, mask=inside[:, None] & (depth < k - at)[None, :], other=0.0)
        a = tl.load(a_at + at, mask=known[:, None] & (depth < k - at)[None, :], other=0.0)
        total = tl.dot(x, a.T, total, input_precision="ieee")
    h_at = h_ptr + tl.program_id(2).to(tl.int64) * h_split_stride + row[:, None] * h_stride + column[None, :]
    tl.store(h_at, total, mask=inside[:, None] & known[None, :])


@triton.jit
def expand_kernel(
    h_ptr,  # [SPLITS, rows, width] fp32; width = slices · rank
    b_ptr,  # [adapters, n, rank]
    scaling_ptr,  # [adapters] fp32
    ranks_ptr,  # [adapters] int32
    slices_ptr,  # [slices + 1] int32: the columns at which slices begin, and n
    order_ptr,  # [rows] int32
    tiles_ptr,  # [tiles, 3] int32
    out_ptr,  # [rows, n]
    h_split_stride,
    h_stride,
    b_adapter_stride,
    b_stride,
    out_stride,
    rank,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """out[row] += scaling[adapter] · h[row, slice] · B[adapter, columns of the slice]ᵀ, added in fp32."""
    adapter = tl.load(tiles_ptr + tl.program_id(0) * 3).to(tl.int64)
    if adapter < 0:
        return
    piece = tl.program_id(2)
    start = tl.load(slices_ptr + piece) + tl.program_id(1) * BLOCK_N
    end = tl.load(slices_ptr + piece + 1)
    if start >= end:
        return
    first = tl.load(tiles_ptr + tl.program_id(0) * 3 + 1)
    count = tl.load(tiles_ptr + tl.program_id(0) * 3 + 2)
    inside = tl.arange(0, BLOCK_M) < count
    row = tl.load(order_ptr + first + tl.arange(0, BLOCK_M), mask=inside, other=0).to(tl.int64)
    column = start + tl.arange(0, BLOCK_N)
    own_rank = tl.load(ranks_ptr + adapter)
    scaling = tl.load(scaling_ptr + adapter)
    out_at = out_ptr + row[:, None] * out_stride + column[None, :]
    writes = inside[:, None] & (column < end)[None, :]
    before = tl.load(out_at, mask=writes, other=0.0)  # first, so that no load waits for another
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for at in range(0, own_rank, BLOCK_R):
        depth = at + tl.arange(0, BLOCK_R)
        known = depth < own_rank
        h_at = h_ptr + row[:, None] * h_stride + (piece * rank + depth)[None, :]
        h = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for split in tl.static_range(SPLITS):
            h += tl.load(h_at + split * h_split_stride, mask=inside[:, None] & known[None, :], other=0.0)
        b_at = b_ptr + adapter * b_adapter_stride + column.to(tl.int64)[:, None] * b_stride + depth[None, :]
        b = tl.load(b_at, mask=(column < end)[:, None] & known[None, :], other=0.0)
        total = tl.dot(h.to(b.dtype), b.T, total, input_precision="ieee")
    y = before.to(tl.float32) + total * scaling
    tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=writes)
