"""Which rows of a batch have which adapter, in the order in which the kernels want them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.lora.kernel import sort_kernel

FEW, MANY = 16, 64
"""Rows in a tile: of small batches, and of large ones."""

FEW_ROWS = 256
"""Rows of the largest small batch."""

SORT = (
    Tile(80, {"CHUNK": 256}, 4, 1, {"rows": FEW_ROWS}),
    Tile(80, {"CHUNK": 1024}, 4, 1),
)


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch's rows by adapter. Shapes depend on the sizes of batch and pool alone: a graph can hold them.

    order   [rows]      int32  rows with an adapter first, those of one adapter together, in their order
    tiles   [tiles, 3]  int32  adapter, first place in order, number of rows; or −1, 0, 0
    block   rows of a full tile: FEW or MANY
    active  whether any row has an adapter: the host's knowledge, by which all launches are left out
    """

    order: Tensor
    tiles: Tensor
    block: int
    active: bool


def unsorted(rows: int, adapters: int, device: torch.device, *, active: bool = True) -> Rows:
    """Room for what `sort_rows` writes, of a batch of so many rows and at most so many adapters."""
    block = FEW if rows <= FEW_ROWS else MANY
    tiles = (rows + min(adapters, rows) * (block - 1)) // block
    order = torch.empty(rows, dtype=torch.int32, device=device)
    return Rows(order, torch.empty(tiles, 3, dtype=torch.int32, device=device), block, active)


@prepared
def sort_rows(adapter_of: Tensor, adapters: int, out: Rows, slots: Tensor | None = None) -> Rows:
    """Sort a batch's rows by adapter, in one launch that waits for nothing. Returns out.

    adapter_of  [rows]   int32  of each row, or of each slot where there are slots; −1: none
    adapters    in the pool
    slots       [rows]   int32  the slot of each row, −1: padding
    Nothing is launched where `out` says that no row has an adapter.
    Raises ValueError for rows of another number than `out` has room for.
    """
    rows = len(adapter_of if slots is None else slots)
    if rows != len(out.order):
        raise ValueError(f"a batch of {rows} rows is sorted into room for {len(out.order)}: give it its own.")
    if out.active:
        launch(
            sort_kernel,
            (adapters + 1,),
            tile=pick(SORT, arch_of(adapter_of.device), rows=rows),
            slots_ptr=slots,
            adapter_of_ptr=adapter_of,
            order_ptr=out.order,
            tiles_ptr=out.tiles,
            rows=rows,
            tiles=len(out.tiles),
            block=out.block,
            ADAPTERS=1 << adapters.bit_length(),
        )
    return out
