"""Low-rank adapters in Triton: what each row's adapter adds to a product, for rows of many adapters at once.

Shrink and expand are bound by latency and by the reading of x, h and the adapters, hardly by arithmetic. A
program has the rows of one adapter, gathered by an index; k is cut into SPLITS parts for shrink, since a rank
has too few columns to occupy the device, and expand adds the parts as it loads them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _adapters_of(slots_ptr, adapter_of_ptr, row, rows, none):
    """Of these rows; none where a row has none or is padding, -1 past the last."""
    at, inside = row, row < rows
    if slots_ptr is not None:
        at = tl.load(slots_ptr + row, mask=inside, other=-1)
    adapter = tl.load(adapter_of_ptr + at, mask=inside & (at >= 0), other=-1)
    return tl.where(inside, tl.where(adapter < 0, none, adapter), -1)


@triton.jit(do_not_specialize=["rows", "tiles"])
def sort_kernel(
    slots_ptr,  # [rows] int32, -1: padding;  or None
    adapter_of_ptr,  # [rows] int32, -1: none; of slots where there are any
    order_ptr,  # [rows] int32
    tiles_ptr,  # [tiles, 3] int32
    rows,
    tiles,
    block,
    ADAPTERS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program an adapter: all count all rows, then each writes its own run and its tiles.

    The last program has the rows without one, whose number is that of an adapter behind the last, and the
    tiles that nobody needs. Bound by latency: a step's rows are few kilobytes; each program reads them twice.
    """
    mine, none = tl.program_id(0), tl.num_programs(0) - 1
    lane, adapter = tl.arange(0, CHUNK), tl.arange(0, ADAPTERS)
    counts = tl.zeros((ADAPTERS,), tl.int32)
    for first in range(0, rows, CHUNK):
        found = _adapters_of(slots_ptr, adapter_of_ptr, first + lane, rows, none)
        counts += tl.histogram(tl.maximum(found, 0), ADAPTERS, mask=found >= 0)
    start = tl.sum(tl.where(adapter < mine, counts, 0), axis=0)
    written = start
    for first in range(0, rows, CHUNK):
        match = _adapters_of(slots_ptr, adapter_of_ptr, first + lane, rows, none) == mine
        place = written + tl.cumsum(match.to(tl.int32), axis=0) - 1
        tl.store(order_ptr + place, first + lane, mask=match)
        written += tl.sum(match.to(tl.int32), axis=0)
    used = (counts + block - 1) // block
    tile = tl.sum(tl.where(adapter < mine, used, 0), axis=0)
    if mine == none:
        for first in range(tile, tiles, CHUNK):
            at, inside = tiles_ptr + (first + lane) * 3, first + lane < tiles
            tl.store(at, -1, mask=inside)
            tl.store(at + 1, 0, mask=inside)
            tl.store(at + 2, 0, mask=inside)
    else:
        count = written - start
        for first in range(0, (count + block - 1) // block, CHUNK):
            passed = (first + lane) * block
            at, inside = tiles_ptr + (tile + first + lane) * 3, passed < count
            tl.store(at, mine, mask=inside)
            tl.store(at + 1, start + passed, mask=inside)
            tl.store(at + 2, tl.minimum(count - passed, block), mask=inside)


@triton.jit
def shrink_kernel(
    x_ptr,  # [rows / share, k]
    a_ptr,  # [adapters, width, k]; width = slices · rank, or the part of it that is this rank's
    ranks_ptr,  # [adapters] int32
    order_ptr,  # [rows] int32
    tiles_ptr,  # [tiles, 3] int32: the adapter or −1, the first place in order, the number of rows
    h_ptr,  # [SPLITS, rows, width] fp32
    ranks_stride,
    x_stride,
    a_adapter_stride,
    a_stride,
    h_split_stride,
    h_stride,
    part_rank,  # rows of A in a slice
    turn,  # of `turns`: the first row of A that is here
    turns,
    width,
    k,
    share,  # rows of h that are of one row of x
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """h[split, row] = x[row / share] · A[adapter of row]ᵀ over the split's part of k, summed in fp32."""
    adapter = tl.load(tiles_ptr + tl.program_id(0) * 3).to(tl.int64)
    if adapter < 0:
        return
    own_rank = (tl.load(ranks_ptr + adapter * ranks_stride) - turn + turns - 1) // turns
    if own_rank == 0:
        return
    first = tl.load(tiles_ptr + tl.program_id(0) * 3 + 1)
    count = tl.load(tiles_ptr + tl.program_id(0) * 3 + 2)
    inside = tl.arange(0, BLOCK_M) < count
    row = tl.load(order_ptr + first + tl.arange(0, BLOCK_M), mask=inside, other=0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    # An adapter of a smaller rank than the pool's has nothing beyond its own in each slice: it is not read.
    known = (column < width) & (column % part_rank < own_rank)
    part = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLITS) * BLOCK_K
    start = tl.program_id(2) * part
    depth = tl.arange(0, BLOCK_K)
    x_at = x_ptr + (row // share)[:, None] * x_stride + depth[None, :]
    a_at = a_ptr + adapter * a_adapter_stride + column.to(tl.int64)[:, None] * a_stride + depth[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for at in range(start, min(start + part, k), BLOCK_K):
        x = tl.load(x_at + at, mask=inside[:, None] & (depth < k - at)[None, :], other=0.0)
        a = tl.load(a_at + at, mask=known[:, None] & (depth < k - at)[None, :], other=0.0)
        total = tl.dot(x.to(a.dtype), a.T, total, input_precision="ieee")
    h_at = h_ptr + tl.program_id(2).to(tl.int64) * h_split_stride + row[:, None] * h_stride + column[None, :]
    tl.store(h_at, total, mask=inside[:, None] & known[None, :])


@triton.jit
def look_up_kernel(
    ids_ptr,  # [rows] int32
    a_ptr,  # [adapters, tokens, rank]
    ranks_ptr,  # [adapters] int32
    order_ptr,  # [rows] int32
    tiles_ptr,  # [tiles, 3] int32
    h_ptr,  # [rows, rank] fp32
    ranks_stride,
    a_adapter_stride,
    a_stride,
    h_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """h[row] = A[adapter of row, id of row]: what shrink would make of a row that is 1 at its token."""
    adapter = tl.load(tiles_ptr + tl.program_id(0) * 3).to(tl.int64)
    if adapter < 0:
        return
    own_rank = tl.load(ranks_ptr + adapter * ranks_stride)
    first = tl.load(tiles_ptr + tl.program_id(0) * 3 + 1)
    count = tl.load(tiles_ptr + tl.program_id(0) * 3 + 2)
    inside = tl.arange(0, BLOCK_M) < count
    row = tl.load(order_ptr + first + tl.arange(0, BLOCK_M), mask=inside, other=0).to(tl.int64)
    token = tl.load(ids_ptr + row, mask=inside, other=0).to(tl.int64)
    for at in range(0, own_rank, BLOCK_R):
        depth = at + tl.arange(0, BLOCK_R)
        known = inside[:, None] & (depth < own_rank)[None, :]
        a_at = a_ptr + adapter * a_adapter_stride + token[:, None] * a_stride + depth[None, :]
        found = tl.load(a_at, mask=known, other=0.0)
        tl.store(h_ptr + row[:, None] * h_stride + depth[None, :], found.to(tl.float32), mask=known)


@triton.jit(do_not_specialize=["turn"])
def fold_kernel(
    h_ptr,  # [SPLITS, rows, slices · part_rank] fp32
    out_ptr,  # [rows, width] fp32; width = slices · rank
    h_split_stride,
    h_stride,
    rank,
    part_rank,
    turn,
    turns,
    width,
    count,  # numbers of out
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[row, column] = the sum over the splits of h, where the column is this rank's turn; 0 elsewhere.

    What shrink has not written is not read by expand either, whatever it is.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = at // width, at % width
    depth = column % rank
    own = (at < count) & (depth % turns == turn)
    h_at = h_ptr + row.to(tl.int64) * h_stride + column // rank * part_rank + depth // turns
    total = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(h_at + split * h_split_stride, mask=own, other=0.0)
    tl.store(out_ptr + at, total, mask=at < count)


@triton.jit
def expand_kernel(
    h_ptr,  # [SPLITS, rows, width] fp32; width = slices · rank
    b_ptr,  # [adapters, n, rank], or [adapters, b_rows, rank] of the columns from b_first on
    ranks_ptr,  # [adapters] int32
    bias_ptr,  # [adapters, n] fp32, or None
    slices_ptr,  # [slices + 1] int32: the columns at which slices begin, and where the last one ends
    order_ptr,  # [rows] int32
    tiles_ptr,  # [tiles, 3] int32
    out_ptr,  # [rows, n]
    ranks_stride,
    bias_stride,
    h_split_stride,
    h_stride,
    b_adapter_stride,
    b_stride,
    out_stride,
    b_first,  # or None, as b_rows
    b_rows,
    rank,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """out[row] += h[row, slice] · B[adapter, columns of the slice]ᵀ + bias[adapter], added in fp32."""
    adapter = tl.load(tiles_ptr + tl.program_id(0) * 3).to(tl.int64)
    if adapter < 0:
        return
    own_rank = tl.load(ranks_ptr + adapter * ranks_stride)
    if (own_rank == 0) & (bias_ptr is None):
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
    out_at = out_ptr + row[:, None] * out_stride + column[None, :]
    b_row, has_b = column, column < end
    if b_first is not None:
        b_row = column - b_first
        has_b = has_b & (b_row >= 0) & (b_row < b_rows)
    writes = inside[:, None] & (column < end)[None, :]
    before = tl.load(out_at, mask=writes, other=0.0)  # first, so that no load waits for another
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + adapter * bias_stride + column, mask=column < end, other=0.0)[None, :]
    for at in range(0, own_rank, BLOCK_R):
        depth = at + tl.arange(0, BLOCK_R)
        known = depth < own_rank
        h_at = h_ptr + row[:, None] * h_stride + (piece * rank + depth)[None, :]
        h = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for split in tl.static_range(SPLITS):
            h += tl.load(h_at + split * h_split_stride, mask=inside[:, None] & known[None, :], other=0.0)
        b_at = b_ptr + adapter * b_adapter_stride + b_row.to(tl.int64)[:, None] * b_stride + depth[None, :]
        b = tl.load(b_at, mask=has_b[:, None] & known[None, :], other=0.0)
        total = tl.dot(h.to(b.dtype), b.T, total, input_precision="ieee")
    y = before.to(tl.float32) + total
    tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=writes)
