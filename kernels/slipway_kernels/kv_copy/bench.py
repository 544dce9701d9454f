"""The copies' cases: pages of models, a few and many of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.kv_copy.op import copy_pages, gather_pages, scatter_pages


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for count, size_of in [(1, 2 << 20), (64, 2 << 20), (512, 64 << 10)] if size == "full" else [(3, 256)]:
        yield from _copies(device, count, size_of)


def _copies(device: torch.device, count: int, size: int) -> Iterator[Case]:
    pool = torch.ones(2 * count, size, device=device, dtype=torch.uint8)
    buffer = torch.zeros(count, size, device=device, dtype=torch.uint8)
    order = torch.randperm(2 * count, device=device, dtype=torch.int32)
    pairs = order.view(count, 2)
    pages = pairs[:, 0].contiguous()
    name, written = f"{count} pages of {size} bytes", count * size

    def within() -> Tensor:
        copy_pages(pool, pairs)
        return pool[:1]

    def back() -> Tensor:
        scatter_pages(buffer, pages, pool)
        return pool[:1]

    chosen = pages.long()
    yield Case(f"copy {name}", within, bytes=2 * written, written=written)
    yield Case(
        f"gather {name}",
        lambda: gather_pages(pool, pages, buffer),
        lambda: pool[chosen],
        bytes=2 * written,
        written=written,
        peers={"torch": lambda: torch.index_select(pool, 0, chosen, out=buffer)},
    )
    yield Case(
        f"scatter {name}",
        back,
        bytes=2 * written,
        written=written,
        peers={"torch": lambda: pool.index_copy_(0, chosen, buffer)},
    )
