"""Adapters on Llama 3.1 8B's layers: one for all rows, or eight that take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import rounding
from slipway_kernels.lora import reference
from slipway_kernels.lora.op import Pool, add_lora, workspace
from slipway_kernels.lora.rows import sort_rows

QKV, GATE_UP, DOWN = (4096, (4096, 1024, 1024)), (4096, (14336, 14336)), (14336, (4096,))
SMALL = (80, (40, 24))


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    if size == "small":
        yield _case(device, 7, SMALL, 16, (16, 8, 3))
        yield _case(device, 3, (96, (40,)), 40, (40,))
        return
    for layer in (QKV, GATE_UP, DOWN):
        for rank in (16, 64):
            for rows in (1, 32, 256, 2048):
                yield _case(device, rows, layer, rank, (rank,))
                yield _case(device, rows, layer, rank, (rank,) * 8)
    yield _case(device, 8192, QKV, 16, (16,))
    yield _case(device, 64, QKV, 256, (256, 8, 16, 32))


def _case(
    device: torch.device, rows: int, layer: tuple[int, tuple[int, ...]], rank: int, ranks: Sequence[int]
) -> Case:
    k, slices = layer
    pool = Pool.empty(len(ranks), rank, k, slices, torch.bfloat16, device)
    pool.a.copy_(reference.filled(pool.a.shape, k**-0.5, torch.bfloat16, device))
    pool.b.copy_(reference.filled(pool.b.shape, rank**-0.5, torch.bfloat16, device))
    pool.scaling.fill_(0.5)
    pool.ranks.copy_(torch.tensor(ranks))
    adapters = torch.arange(rows) % len(ranks)
    on_host = sort_rows(adapters, len(ranks))
    by_adapter = sort_rows(adapters.to(device), len(ranks), active=on_host.active)
    x = reference.filled((rows, k), 1.0, torch.bfloat16, device)
    before = reference.filled((rows, sum(slices)), 1.0, torch.bfloat16, device)
    out, h = before.clone(), workspace(pool, rows)
    starts = [sum(slices[:index]) for index in range(len(slices) + 1)]

    def run() -> Tensor:
        return add_lora(x, pool, by_adapter, h, out)

    def expected() -> Tensor:
        lists = [0.5] * len(ranks), list(ranks), starts, adapters.tolist()
        return reference.lora(x, pool.a, pool.b, *lists, before)

    def by_torch() -> Tensor:
        """One adapter: slice by slice."""
        shrunk = (x @ pool.a[0].T).view(rows, len(slices), rank)
        for index, (left, right) in enumerate(pairwise(starts)):
            out[:, left:right].addmm_(shrunk[:, index], pool.b[0, left:right].T, alpha=0.5)
        return out

    used = min(rows, len(ranks))
    return Case(
        f"{rows} rows, {len(ranks)} of rank {rank}, {k} to {'+'.join(map(str, slices))}",
        run,
        expected,
        tolerance=rounding(torch.bfloat16, torch.bfloat16, terms=k),  # x · Aᵀ, and the result
        bytes=2 * (rows * (k + 2 * sum(slices)) + used * rank * (len(slices) * k + sum(slices))),
        flops=2 * rows * rank * (len(slices) * k + sum(slices)),
        peers={"torch": by_torch} if len(ranks) == 1 else {},
    )
