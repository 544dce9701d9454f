"""Which rows of a batch have which adapter, in the order in which the kernels want them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FEW, MANY = 16, 64
"""Rows in a tile: of small batches, and of large ones."""

FEW_ROWS = 256
"""Rows of the largest small batch."""


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


def sort_rows(row_adapters: Tensor, adapters: int, *, active: bool | None = None) -> Rows:
    """Sort a batch's rows, on the tensor's own device and without waiting for it.

    row_adapters  [rows]  any integer type: the adapter of each row, −1 where it has none
    adapters      in the pool
    active        must be given for a tensor that is not on the host
    Raises ValueError where it is not given.
    """
    if active is None:
        if row_adapters.device.type != "cpu":
            raise ValueError(
                f"The adapters of the rows are on {row_adapters.device}: say by `active` whether any row "
                "has one, or sort them on the host."
            )
        active = bool((row_adapters >= 0).any())
    device, rows = row_adapters.device, len(row_adapters)
    block = FEW if rows <= FEW_ROWS else MANY
    key = torch.where(row_adapters < 0, adapters, row_adapters).long()
    counts = torch.zeros(adapters + 1, dtype=torch.long, device=device)
    counts.scatter_add_(0, key, torch.ones_like(key))
    first = counts.cumsum(0) - counts
    of_each = (counts[:adapters] + block - 1) // block
    end = of_each.cumsum(0)
    tile = torch.arange((rows + min(adapters, rows) * (block - 1)) // block, device=device)
    found = torch.searchsorted(end, tile, right=True)
    adapter = found.clamp(max=adapters - 1)
    passed = (tile - end[adapter] + of_each[adapter]) * block
    used = found < adapters
    columns = (
        torch.where(used, adapter, -1),
        torch.where(used, first[adapter] + passed, 0),
        torch.where(used, (counts[adapter] - passed).clamp(0, block), 0),
    )
    return Rows(key.argsort(stable=True).int(), torch.stack(columns, 1).int(), block, active)
