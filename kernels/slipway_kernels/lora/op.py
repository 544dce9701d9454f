"""Low-rank adapters on the device: out += scaling · x · Aᵀ · Bᵀ, for rows of many adapters at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import Tile, arch_of, launch, pick
from slipway_kernels.lora.kernel import expand_kernel, shrink_kernel
from slipway_kernels.lora.rows import FEW_ROWS, Rows

LARGEST_RANK = 256

SPLITS = {FEW_ROWS: 8, 4096: 4}
"""Parts of k by the batch's largest number of rows: enough programs for the device, whatever the rank."""

# Few rows: a program of shrink reads 16 or 32 rows of A in an eighth of k. Many: a quarter of k is enough.
SHRINK = (
    Tile(80, {"BLOCK_M": 16, "BLOCK_R": 16, "BLOCK_K": 256}, 2, 4, {"block": 16, "width": 16}),
    Tile(80, {"BLOCK_M": 16, "BLOCK_R": 32, "BLOCK_K": 128}, 2, 4, {"block": 16}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_R": 16, "BLOCK_K": 64}, 4, 4, {"width": 16}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_R": 64, "BLOCK_K": 128}, 4, 3),
)
EXPAND = (
    Tile(80, {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_R": 16}, 4, 2, {"block": 16, "rank": 16}),
    Tile(80, {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_R": 32}, 4, 2, {"block": 16}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_R": 16}, 8, 2, {"rank": 16}),
    Tile(80, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_R": 32}, 8, 1),
)


@dataclass(frozen=True, slots=True)
class Pool:
    """The adapters of one layer. A fused layer has several slices, each with an A and a B of its own.

    a        [adapters, slices · rank, k]  bf16, fp16 or fp32
    b        [adapters, n, rank]           the same type; n counts the columns of all slices
    scaling  [adapters]    fp32
    ranks    [adapters]    int32: each at most rank, 0 where the place is free; what lies beyond is not read
    starts   [slices + 1]  int32: the columns at which slices begin, and n
    widest   columns of the widest slice
    """

    a: Tensor
    b: Tensor
    scaling: Tensor
    ranks: Tensor
    starts: Tensor
    widest: int

    @property
    def rank(self) -> int:
        return self.b.shape[2]

    @classmethod
    def empty(
        cls, adapters: int, rank: int, k: int, slices: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Pool:
        """A pool of free places, for slices of so many columns each.

        Raises ValueError for a rank beyond 256.
        """
        if not 1 <= rank <= LARGEST_RANK:
            raise ValueError(f"the largest rank is {rank}: the kernels are for 1 to {LARGEST_RANK}.")
        starts = [sum(slices[:index]) for index in range(len(slices) + 1)]
        return cls(
            torch.zeros(adapters, len(slices) * rank, k, dtype=dtype, device=device),
            torch.zeros(adapters, starts[-1], rank, dtype=dtype, device=device),
            torch.zeros(adapters, dtype=torch.float32, device=device),
            torch.zeros(adapters, dtype=torch.int32, device=device),
            torch.tensor(starts, dtype=torch.int32, device=device),
            max(slices),
        )

    def put(self, place: int, parts: Sequence[tuple[Tensor, Tensor] | None], scaling: float) -> None:
        """Put an adapter into a place: each slice's A [its rank, k] and B [its columns, its rank].

        None stands for a slice that the adapter leaves as it is. Raises ValueError, before anything is
        written, where the adapter does not fit.
        """
        starts = self.starts.tolist()
        if len(parts) != len(starts) - 1:
            raise ValueError(f"the adapter has {len(parts)} slices and the layer {len(starts) - 1}.")
        given = [(index, *part) for index, part in enumerate(parts) if part is not None]
        for index, a, b in given:
            k, columns = self.a.shape[2], starts[index + 1] - starts[index]
            if a.shape != (len(a), k) or b.shape != (columns, len(a)) or len(a) > self.rank:
                raise ValueError(
                    f"slice {index} of the adapter has A {list(a.shape)} and B {list(b.shape)}: here they "
                    f"are [rank, {k}] and [{columns}, rank], of a rank of at most {self.rank}."
                )
        self.a[place].zero_()
        self.b[place].zero_()
        for index, a, b in given:
            self.a[place, index * self.rank : index * self.rank + len(a)] = a
            self.b[place, starts[index] : starts[index + 1], : len(a)] = b
        self.scaling[place] = scaling
        self.ranks[place] = max((len(a) for _, a, _ in given), default=0)


def workspace(pool: Pool, rows: int) -> Tensor:
    """Memory of h, flat, in fp32, for batches of up to so many rows."""
    most = max(_splits(count) * count for count in (*SPLITS, rows) if count <= rows)
    return torch.empty(most * pool.a.shape[1], dtype=torch.float32, device=pool.a.device)


def _splits(rows: int) -> int:
    return next((splits for most, splits in SPLITS.items() if rows <= most), 1)


def add_lora(x: Tensor, pool: Pool, rows: Rows, h: Tensor, out: Tensor) -> Tensor:
    """out += scaling · x · Aᵀ · Bᵀ by each row's adapter; other rows stay as they are.

    x    [rows, k]  of the pool's type, columns adjacent
    h    the workspace
    out  [rows, n]  bf16, fp16 or fp32, columns adjacent
    Returns out. Nothing is launched where no row has an adapter. Raises ValueError where shapes disagree.
    Source: Hu et al. 2021 (LoRA).
    """
    if rows.active:
        expand(shrink(x, pool, rows, h), pool, rows, out)
    return out


def shrink(x: Tensor, pool: Pool, rows: Rows, h: Tensor) -> Tensor:
    """x · Aᵀ by each row's adapter. The rest is as in `add_lora`.

    Returns h as [splits, rows, slices · rank], whose sum over the splits is the product; rows without an
    adapter and columns beyond an adapter's rank are not written.
    """
    (count, k), width = x.shape, pool.a.shape[1]
    if pool.a.shape[2] != k or x.dtype != pool.a.dtype or 1 not in (k, x.stride(1)):
        raise ValueError(
            f"x is {x.dtype} {list(x.shape)} by strides of {x.stride()}, A {pool.a.dtype} "
            f"{list(pool.a.shape)}: they are of one type and one k, and the columns of x are adjacent."
        )
    splits = _splits(count)
    if len(rows.order) != count or h.numel() < splits * count * width:
        raise ValueError(
            f"the batch has {count} rows, {len(rows.order)} were sorted, and h has room for {h.numel()} "
            "numbers: sort as many rows, and make h by workspace() for at least as many."
        )
    h = h[: splits * count * width].view(splits, count, width)
    tile = pick(SHRINK, arch_of(x.device), block=rows.block, width=width)
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
        x_stride=x.stride(0),
        a_adapter_stride=pool.a.stride(0),
        a_stride=pool.a.stride(1),
        h_split_stride=h.stride(0),
        h_stride=h.stride(1),
        rank=pool.rank,
        width=width,
        k=k,
        SPLITS=splits,
    )
    return h


def expand(h: Tensor, pool: Pool, rows: Rows, out: Tensor) -> Tensor:
    """out += scaling · h · Bᵀ by each row's adapter, h as `shrink` returns it. Returns out."""
    (count, n), width = out.shape, pool.a.shape[1]
    if pool.b.shape[1] != n or 1 not in (n, out.stride(1)):
        raise ValueError(
            f"out is {list(out.shape)} by strides of {out.stride()}, B {list(pool.b.shape)}: out has as "
            "many columns as B rows, and they are adjacent."
        )
    if len(rows.order) != count or h.shape[1:] != (count, width):
        raise ValueError(
            f"out has {count} rows, {len(rows.order)} were sorted, and h is {list(h.shape)}: all three are "
            f"of one batch, and h is [splits, {count}, {width}]."
        )
    tile = pick(EXPAND, arch_of(out.device), block=rows.block, rank=pool.rank)
    launch(
        expand_kernel,
        (len(rows.tiles), -(-pool.widest // tile.constants["BLOCK_N"]), len(pool.starts) - 1),
        tile=tile,
        h_ptr=h,
        b_ptr=pool.b,
        scaling_ptr=pool.scaling,
        ranks_ptr=pool.ranks,
        slices_ptr=pool.starts,
        order_ptr=rows.order,
        tiles_ptr=rows.tiles,
        out_ptr=out,
        h_split_stride=h.stride(0),
        h_stride=h.stride(1),
        b_adapter_stride=pool.b.stride(0),
        b_stride=pool.b.stride(1),
        out_stride=out.stride(0),
        rank=pool.rank,
        SPLITS=len(h),
    )
    return out
