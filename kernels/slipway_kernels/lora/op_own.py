"""Rows of tokens that adapters have for themselves, on the device: looked up, and multiplied by."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import PIECE_TILES
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.lora.kernel_own import own_embedding_kernel, own_logits_kernel
from slipway_kernels.lora.pool import aligned
from slipway_kernels.lora.rows import FEW, MANY, Rows

# As of shrink, whose product it is: rows that have few columns, and all of k.
OWN_LOGITS = (
    Tile(80, {"BLOCK_M": FEW, "BLOCK_N": 32, "BLOCK_K": 128}, 4, 4, {"block": FEW, "itemsize": 2}),
    Tile(80, {"BLOCK_M": MANY, "BLOCK_N": 64, "BLOCK_K": 64}, 4, 3, {"itemsize": 2}),
    Tile(80, {"BLOCK_M": FEW, "BLOCK_N": 32, "BLOCK_K": 64}, 4, 3, {"block": FEW}),
    Tile(80, {"BLOCK_M": MANY, "BLOCK_N": 32, "BLOCK_K": 32}, 8, 3),
)


@dataclass(frozen=True, slots=True)
class OwnTables:
    """What the adapters in places have in place of a model's rows. A place of zeros has nothing.

    row_of     [places, tokens]  int32, of each token one more than its row of `embedding`; 0: it has none
    counts     [places]  int32, rows of the head; what lies behind them is not read
    tokens     [places, most]  int32, whose these rows are
    bias       [places, most]  fp32, added to their logits
    embedding, head  [places, most, width]  bf16, fp16 or fp32
    """

    row_of: Tensor
    counts: Tensor
    tokens: Tensor
    bias: Tensor
    embedding: Tensor
    head: Tensor

    @property
    def most(self) -> int:
        return self.head.shape[1]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.row_of, self.counts, self.tokens, self.bias, self.embedding, self.head)


@dataclass(frozen=True, slots=True)
class OwnShape:
    """What a place has room for: `most` rows each of the embedding and the head, of `tokens` with their ids
    from 0 on."""

    tokens: int
    most: int
    width: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Of one place."""
        return sum(aligned(prod(shape) * dtype.itemsize) for shape, dtype in self._tensors)

    def over(self, memory: Tensor) -> OwnTables:
        """Tables in memory [places, nbytes] uint8, whose places begin at multiples of 256 bytes."""
        parts, at = [], 0
        for shape, dtype in self._tensors:
            part = memory[:, at : at + prod(shape) * dtype.itemsize].view(dtype)
            parts.append(part.view(len(memory), *shape))
            at += aligned(prod(shape) * dtype.itemsize)
        row_of, counts, *others = parts
        return OwnTables(row_of, counts[:, 0], *others)

    @property
    def _tensors(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        rows = ((self.most, self.width), self.dtype)
        return [
            ((self.tokens,), torch.int32),
            ((1,), torch.int32),
            ((self.most,), torch.int32),
            ((self.most,), torch.float32),
            *(rows, rows),
        ]


@prepared
def enter_own(ids: Tensor, slots: Tensor, place_of: Tensor, tables: OwnTables, out: Tensor) -> Tensor:
    """Rows of out that are of tokens for which their adapter has an embedding become that.

    ids       [rows]  int32; where one is no token of the tables, its row stays
    slots     [rows]  int32, -1: padding
    place_of  [num_slots]  int32, of each slot's adapter; -1: it has none
    out       [rows, width]  bf16, fp16 or fp32, columns adjacent
    Returns out. Raises ValueError where shapes disagree.
    """
    rows, width = out.shape
    table = tables.embedding
    if ids.shape != (rows,) or slots.shape != (rows,) or table.shape[2] != width or out.stride(1) != 1:
        raise ValueError(
            f"out is {list(out.shape)}, ids {list(ids.shape)}, slots {list(slots.shape)} and rows of the "
            f"embedding are {table.shape[2]} wide: out has a row for each id and slot, as wide, and adjacent."
        )
    tile = pick(PIECE_TILES, arch_of(out.device))
    launch(
        own_embedding_kernel,
        (rows, -(-width // tile.constants["WIDTH"])),
        tile=tile,
        ids_ptr=ids,
        slots_ptr=slots,
        place_of_ptr=place_of,
        row_of_ptr=tables.row_of,
        table_ptr=table,
        out_ptr=out,
        row_of_stride=tables.row_of.stride(0),
        table_place_stride=table.stride(0),
        table_stride=table.stride(1),
        out_stride=out.stride(0),
        tokens=tables.row_of.shape[1],
        width=width,
    )
    return out


@prepared
def own_logits(x: Tensor, tables: OwnTables, rows: Rows, out: Tensor, *, cap: float = 0.0) -> Tensor:
    """Logits of tokens for which a row's adapter has a row of the head take their columns of out.

    x    [rows, width]  bf16, fp16 or fp32, multiplied in the tables' type; columns adjacent
    rows  sorted by place
    out  [rows, columns]  bf16, fp16 or fp32, columns adjacent; one for every token of the tables
    cap  of `softcap`; 0: there is none
    Returns out. Raises ValueError where shapes disagree.
    """
    count, k = x.shape
    head = tables.head
    if head.shape[2] != k or out.shape != (count, out.shape[1]) or len(rows.order) != count:
        raise ValueError(
            f"x is {list(x.shape)}, out {list(out.shape)}, {len(rows.order)} rows were sorted and rows of "
            f"the head are {head.shape[2]} wide: all are of one batch, and x is as wide."
        )
    if out.shape[1] < tables.row_of.shape[1] or 1 not in (k, x.stride(1)) or out.stride(1) != 1:
        raise ValueError(
            f"out is {list(out.shape)} by strides of {out.stride()} for {tables.row_of.shape[1]} tokens, and "
            f"x has strides of {x.stride()}: there is a column for each, and they are adjacent."
        )
    itemsize = max(x.itemsize, head.itemsize)
    tile = pick(OWN_LOGITS, arch_of(x.device), block=rows.block, itemsize=itemsize)
    launch(
        own_logits_kernel,
        (len(rows.tiles), -(-tables.most // tile.constants["BLOCK_N"])),
        tile=tile,
        x_ptr=x,
        head_ptr=head,
        bias_ptr=tables.bias,
        tokens_ptr=tables.tokens,
        counts_ptr=tables.counts,
        order_ptr=rows.order,
        tiles_ptr=rows.tiles,
        out_ptr=out,
        x_stride=x.stride(0),
        head_place_stride=head.stride(0),
        head_stride=head.stride(1),
        bias_stride=tables.bias.stride(0),
        tokens_stride=tables.tokens.stride(0),
        counts_stride=tables.counts.stride(0),
        out_stride=out.stride(0),
        k=k,
        cap=float(cap),
        CAPPED=cap > 0,
    )
    return out
