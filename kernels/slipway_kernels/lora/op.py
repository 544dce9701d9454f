"""Low-rank adapters on the device: out += x · Aᵀ · Bᵀ + bias, for rows of many adapters at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared, scratch
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.lora.kernel import expand_kernel, fold_kernel, look_up_kernel, shrink_kernel
from slipway_kernels.lora.pool import Pool
from slipway_kernels.lora.rows import FEW_ROWS, Rows

SPLITS = {FEW_ROWS: 8, 4096: 4}
"""Parts of k by the batch's largest number of rows: enough programs for the device, whatever the rank."""

# Few rows: a program of shrink reads 16 or 32 rows of A in an eighth of k. Many: a quarter of k is enough.
# Products in fp32 are not those of tensor cores: large tiles of them have no room in registers.
SHRINK = (
    Tile(80, {"BLOCK_M": 16, "BLOCK_R": 16, "BLOCK_K": 256}, 2, 4, {"block": 16, "width": 16, "itemsize": 2}),
    Tile(80, {"BLOCK_M": 16, "BLOCK_R": 32, "BLOCK_K": 128}, 2, 4, {"block": 16, "itemsize": 2}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_R": 16, "BLOCK_K": 64}, 4, 4, {"width": 16, "itemsize": 2}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_R": 64, "BLOCK_K": 128}, 4, 3, {"itemsize": 2}),
    Tile(80, {"BLOCK_M": 16, "BLOCK_R": 32, "BLOCK_K": 64}, 4, 3, {"block": 16}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_R": 32, "BLOCK_K": 32}, 8, 3),
)
EXPAND = (
    Tile(80, {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_R": 16}, 4, 2, {"block": 16, "rank": 16}),
    Tile(80, {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_R": 32}, 4, 2, {"block": 16}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_R": 16}, 8, 2, {"rank": 16, "itemsize": 2}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_R": 32}, 8, 1, {"itemsize": 2}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_R": 16}, 8, 1),
)
FOLD = (Tile(80, {"BLOCK": 1024}, 4, 1),)
LOOK_UP = (
    Tile(80, {"BLOCK_M": 16, "BLOCK_R": 64}, 2, 1, {"block": 16}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_R": 64}, 4, 1),
)


def workspace(pool: Pool, rows: int) -> Tensor:
    """Memory of h, flat, in fp32, for batches of up to so many rows."""
    most = max(_splits(count) * count for count in (*SPLITS, rows) if count <= rows)
    return torch.empty(most * pool.a.shape[1], dtype=torch.float32, device=pool.a.device)


def _splits(rows: int) -> int:
    return next((splits for most, splits in SPLITS.items() if rows <= most), 1)


def add_lora(
    x: Tensor,
    pool: Pool,
    rows: Rows,
    h: Tensor,
    out: Tensor,
    *,
    share: int = 1,
    added_up: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """out += x · Aᵀ · Bᵀ + bias by each row's adapter; other rows stay as they are.

    x    [rows / share, k]  bf16, fp16 or fp32, multiplied in the pool's type; columns adjacent
    h    the workspace
    out  [rows, n]  bf16, fp16 or fp32, columns adjacent
    share  neighbouring rows of out that each row of x is multiplied for
    added_up  of parts of x · Aᵀ, the sum over the ranks that share A's rows or columns, as `fold` gives them;
              None: the pool has all of A
    Returns out. Nothing is launched where no row has an adapter. Raises ValueError where shapes disagree.
    Source: Hu et al. 2021 (LoRA).
    """
    if not rows.active:
        return out
    h = shrink(x, pool, rows, h, share=share)
    if added_up is not None:
        h = added_up(fold(h, pool)).unsqueeze(0)
    return expand(h, pool, rows, out)


@prepared
def add_looked_up(ids: Tensor, pool: Pool, rows: Rows, h: Tensor, out: Tensor) -> Tensor:
    """out += A[:, id] · Bᵀ by each row's adapter: what it adds to an embedding. The rest is as in `add_lora`.

    ids  [rows]  int32, within the columns of A where a row has an adapter
    """
    if not rows.active:
        return out
    count, rank = len(ids), pool.shape.rank
    if pool.a.stride(1) != 1:
        raise ValueError("A lies by rows, and tokens are looked up by column: make the pool `by_token`.")
    _check_room(count, rank, rows, h, 1)
    h = h[: count * rank].view(1, count, rank)
    launch(
        look_up_kernel,
        (len(rows.tiles),),
        tile=pick(LOOK_UP, arch_of(ids.device), block=rows.block),
        ids_ptr=ids,
        a_ptr=pool.a,
        ranks_ptr=pool.ranks,
        order_ptr=rows.order,
        tiles_ptr=rows.tiles,
        h_ptr=h,
        ranks_stride=pool.ranks.stride(0),
        a_adapter_stride=pool.a.stride(0),
        a_stride=pool.a.stride(2),
        h_stride=h.stride(1),
    )
    return expand(h, pool, rows, out)


@prepared
def shrink(x: Tensor, pool: Pool, rows: Rows, h: Tensor, *, share: int = 1) -> Tensor:
    """x · Aᵀ by each row's adapter. The rest is as in `add_lora`.

    Returns h as [splits, rows, slices · rank], or the part of these columns of which A has the rows; its sum
    over the splits is the product. Rows without an adapter and columns beyond an adapter's rank are not
    written.
    """
    count, k, width = len(x) * share, x.shape[1], pool.a.shape[1]
    if pool.a.shape[2] != k or 1 not in (k, x.stride(1)) or 1 not in (k, pool.a.stride(2)):
        raise ValueError(
            f"x is {list(x.shape)} by strides of {x.stride()}, A {list(pool.a.shape)} by {pool.a.stride()}: "
            "they are of one k, and columns are adjacent."
        )
    splits = _splits(count)
    _check_room(count, width, rows, h, splits)
    h = h[: splits * count * width].view(splits, count, width)
    itemsize = max(x.itemsize, pool.a.itemsize)
    tile = pick(SHRINK, arch_of(x.device), block=rows.block, width=width, itemsize=itemsize)
    launch(
        shrink_kernel,
        (len(rows.tiles), -(-width // tile.constants["BLOCK_R"]), splits),
        tile=tile,
        x_ptr=x,
        a_ptr=pool.a,
        ranks_ptr=pool.ranks,
        order_ptr=rows.order,
        tiles_ptr=rows.tiles,
        h_ptr=h,
        ranks_stride=pool.ranks.stride(0),
        x_stride=x.stride(0),
        a_adapter_stride=pool.a.stride(0),
        a_stride=pool.a.stride(1),
        h_split_stride=h.stride(0),
        h_stride=h.stride(1),
        part_rank=pool.shape.part_rank,
        turn=pool.shape.turn,
        turns=pool.shape.turns,
        width=width,
        k=k,
        share=share,
        SPLITS=splits,
    )
    return h


@prepared
def fold(h: Tensor, pool: Pool) -> Tensor:
    """h as `shrink` returns it → [rows, slices · rank] fp32, its sum over the splits, with 0 in other ranks'
    columns: added up over the ranks it is x · Aᵀ."""
    shape = pool.shape
    out = scratch((h.shape[1], len(shape.slices) * shape.rank), h.dtype, h.device)
    tile = pick(FOLD, arch_of(h.device))
    launch(
        fold_kernel,
        (-(-out.numel() // tile.constants["BLOCK"]),),
        tile=tile,
        h_ptr=h,
        out_ptr=out,
        h_split_stride=h.stride(0),
        h_stride=h.stride(1),
        rank=shape.rank,
        part_rank=shape.part_rank,
        turn=shape.turn,
        turns=shape.turns,
        width=out.shape[1],
        count=out.numel(),
        SPLITS=len(h),
    )
    return out


@prepared
def expand(h: Tensor, pool: Pool, rows: Rows, out: Tensor) -> Tensor:
    """out += h · Bᵀ + bias by each row's adapter, h as `shrink` returns it, or whole. Returns out."""
    (count, n), shape = out.shape, pool.shape
    width = len(shape.slices) * shape.rank
    if shape.n != n or 1 not in (n, out.stride(1)):
        raise ValueError(
            f"out is {list(out.shape)} by strides of {out.stride()}, and the layer has {shape.n} columns: "
            "out has as many, and they are adjacent."
        )
    if len(rows.order) != count or h.shape[1:] != (count, width):
        raise ValueError(
            f"out has {count} rows, {len(rows.order)} were sorted, and h is {list(h.shape)}: all three are "
            f"of one batch, and h is [splits, {count}, {width}]."
        )
    itemsize = max(out.itemsize, pool.b.itemsize)
    tile = pick(EXPAND, arch_of(out.device), block=rows.block, rank=shape.rank, itemsize=itemsize)
    bias = pool.bias
    launch(
        expand_kernel,
        (len(rows.tiles), -(-pool.widest // tile.constants["BLOCK_N"]), len(pool.starts) - 1),
        tile=tile,
        h_ptr=h,
        b_ptr=pool.b,
        ranks_ptr=pool.ranks,
        bias_ptr=bias,
        slices_ptr=pool.starts,
        order_ptr=rows.order,
        tiles_ptr=rows.tiles,
        out_ptr=out,
        ranks_stride=pool.ranks.stride(0),
        bias_stride=None if bias is None else bias.stride(0),
        h_split_stride=h.stride(0),
        h_stride=h.stride(1),
        b_adapter_stride=pool.b.stride(0),
        b_stride=pool.b.stride(1),
        out_stride=out.stride(0),
        b_first=None if shape.run is None else shape.run.start,
        b_rows=None if shape.run is None else len(shape.run),
        rank=shape.rank,
        SPLITS=len(h),
    )
    return out


def _check_room(count: int, width: int, rows: Rows, h: Tensor, splits: int) -> None:
    if len(rows.order) != count or h.numel() < splits * count * width:
        raise ValueError(
            f"the batch has {count} rows, {len(rows.order)} were sorted, and h has room for {h.numel()} "
            "numbers: sort as many rows, and make h by workspace() for at least as many."
        )
