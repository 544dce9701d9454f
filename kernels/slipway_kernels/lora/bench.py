"""Adapters on Llama 3.1 8B's layers and embedding, and on experts: one for all rows, or some in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import rounding
from slipway_kernels.lora import reference
from slipway_kernels.lora.op import add_looked_up, add_lora, workspace
from slipway_kernels.lora.op_own import OwnShape, OwnTables, enter_own, own_logits
from slipway_kernels.lora.pool import Pool, PoolShape
from slipway_kernels.lora.rows import Rows, sort_rows, unsorted

QKV, GATE_UP, DOWN = (4096, (4096, 1024, 1024)), (4096, (14336, 14336)), (14336, (4096,))
EXPERT_GATE_UP, EXPERT_DOWN = (2048, (768, 768)), (768, (2048,))
"""Of Qwen3-30B-A3B."""
SMALL = (80, (40, 24))
VOCAB, HIDDEN = 128256, 4096
BF16, FP32 = torch.bfloat16, torch.float32


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    if size == "small":
        yield _case(device, 7, SMALL, 16, (16, 8, 3))
        yield _case(device, 3, (96, (40,)), 40, (40,))
        yield _case(device, 5, SMALL, 16, (16, 8), dtype=FP32, bias=True)
        yield _look_up(device, 6, 50, 40, 8)
        yield _sort(device, 9, 3)
        yield _case(device, 6, SMALL, 16, (16, 8, 3), share=3)
        yield _case(device, 7, SMALL, 15, (15, 8, 3), turns=2)
        yield _case(device, 3, (48, (80,)), 16, (16, 7), run=range(40, 80), bias=True)
        yield _own_embedding(device, 6, 50, 40, 8)
        yield _own_logits(device, 6, 50, 40, 8)
        yield _own_logits(device, 5, 50, 40, 3, dtype=FP32, cap=20.0)
        return
    for rows in (1, 32, 256, 8192):
        for adapters in (1, 8, 64):
            yield _sort(device, rows, adapters)
    for rows in (64, 16384):  # pairs of a row and one of eight experts, of four adapters of 128 experts
        yield _sort(device, rows, 512)
        for experts, share in ((EXPERT_GATE_UP, 8), (EXPERT_DOWN, 1)):
            yield _case(device, rows, experts, 16, (16,) * 512, share=share)
    for layer in (QKV, GATE_UP, DOWN):
        for rank in (16, 64):
            for rows in (1, 32, 256, 2048):
                yield _case(device, rows, layer, rank, (rank,))
                yield _case(device, rows, layer, rank, (rank,) * 8)
    yield _case(device, 8192, QKV, 16, (16,))
    yield _case(device, 64, QKV, 256, (256, 8, 16, 32))
    for rows in (32, 2048):
        for rank in (16, 64):
            yield _case(device, rows, QKV, rank, (rank,) * 8, bias=True)
            yield _case(device, rows, QKV, rank, (rank,) * 8, dtype=FP32)
            yield _case(device, rows, QKV, rank, (rank,) * 8, dtype=FP32, model=FP32)
            yield _look_up(device, rows, VOCAB, HIDDEN, rank)
        for layer in (QKV, GATE_UP):
            yield _case(device, rows, layer, 16, (16,) * 8, turns=4)
        for dtype in (BF16, FP32):
            part = (DOWN[0] // 4, DOWN[1])
            yield _case(device, rows, part, 16, (16,) * 8, dtype=dtype, bias=True, run=range(1024, 2048))
        yield _own_embedding(device, rows, VOCAB, HIDDEN, 256)
        for most in (256, VOCAB) if rows == 32 else (256,):
            yield _own_logits(device, rows, VOCAB, HIDDEN, most)
        yield _own_logits(device, rows, VOCAB, HIDDEN, 256, cap=30.0)
        yield _own_logits(device, rows, VOCAB, HIDDEN, 256, dtype=FP32)


def _filled(shape: PoolShape, ranks: Sequence[int], deviation: float, device: torch.device) -> Pool:
    """A pool of random adapters of these ranks."""
    pool = shape.empty(len(ranks), device)
    pool.a.copy_(reference.filled(pool.a.shape, deviation, shape.dtype, device))
    pool.b.copy_(reference.filled(pool.b.shape, 0.5 * shape.rank**-0.5, shape.dtype, device))
    pool.ranks.copy_(torch.tensor(ranks))
    if pool.bias is not None:
        pool.bias.copy_(reference.filled(pool.bias.shape, 1.0, FP32, device))
    return pool


def _taking_turns(rows: int, adapters: int, device: torch.device) -> tuple[Tensor, Rows]:
    """The adapters of rows, and these sorted by them."""
    adapter_of = torch.arange(rows, dtype=torch.int32, device=device) % adapters
    by_adapter = unsorted(rows, adapters, device)
    if device.type != "meta":
        sort_rows(adapter_of, adapters, by_adapter)
    return adapter_of, by_adapter


def _case(
    device: torch.device,
    rows: int,
    layer: tuple[int, tuple[int, ...]],
    rank: int,
    ranks: Sequence[int],
    *,
    dtype: torch.dtype = BF16,
    model: torch.dtype = BF16,
    bias: bool = False,
    share: int = 1,
    turns: int = 1,
    run: range | None = None,
) -> Case:
    """dtype: of the adapters. model: of the rows and of what they are added to. share: these by row of x.
    turns, run: of a rank's part of the pool, which adds without the others'."""
    k, slices = layer
    shape = PoolShape(rank, k, slices, dtype, bias, turn=turns // 2, turns=turns, run=run)
    pool = _filled(shape, ranks, k**-0.5, device)
    adapters, by_adapter = _taking_turns(rows, len(ranks), device)
    x = reference.filled((rows // share, k), 1.0, model, device)
    before = reference.filled((rows, sum(slices)), 1.0, model, device)
    out, h = before.clone(), workspace(pool, rows)
    starts = [sum(slices[:index]) for index in range(len(slices) + 1)]

    def add() -> Tensor:
        added_up = (lambda part: part) if shape.is_part else None
        return add_lora(x, pool, by_adapter, h, out, share=share, added_up=added_up)

    def expected() -> Tensor:
        lists = list(ranks), starts, adapters.tolist()
        a, b = _whole(pool)
        return reference.lora(x.repeat_interleave(share, 0), a, b, *lists, before, pool.bias)

    def by_torch() -> Tensor:
        """One adapter: slice by slice."""
        shrunk = (x @ pool.a[0].T).view(rows, len(slices), rank)
        for index, (left, right) in enumerate(pairwise(starts)):
            out[:, left:right].addmm_(shrunk[:, index], pool.b[0, left:right].T)
        return out

    used = min(rows, len(ranks))
    factors = pool.a.shape[1] * k + pool.b.shape[1] * rank  # of an adapter
    added = model.itemsize * rows * pool.b.shape[1]
    types = [str(one).removeprefix("torch.") for one in (dtype, model)]
    form = "" if types == ["bfloat16"] * 2 else f", {types[0]} to {types[1]}"
    return Case(
        f"{rows} rows, {len(ranks)} of rank {rank}, {k} to {'+'.join(map(str, slices))}"
        f"{form}{', with biases' if bias else ''}{f', {share} of a row' if share > 1 else ''}"
        f"{f', a turn of {turns}' if turns > 1 else ''}{f', B of {len(run)}' if run else ''}",
        add,
        expected,
        tolerance=rounding(dtype, model, terms=k),  # x · Aᵀ, and the result
        bytes=x.nbytes + 2 * added + dtype.itemsize * used * factors,
        written=added,
        flops=2 * rows * factors,
        arithmetic="fp32" if dtype == FP32 else "bf16",
        peers={"torch": by_torch} if len(ranks) == 1 else {},
    )


def _whole(pool: Pool) -> tuple[Tensor, Tensor]:
    """A and B of a pool, with zeros for what other ranks have."""
    shape, places = pool.shape, len(pool.ranks)
    a = pool.a.new_zeros(places, len(shape.slices), shape.rank, shape.k)
    dealt = pool.a.view(places, len(shape.slices), shape.part_rank, shape.k)
    a[:, :, shape.turn :: shape.turns] = dealt[:, :, : shape.dealt(shape.rank)]
    b = pool.b.new_zeros(places, shape.n, shape.rank)
    run = shape.run or range(shape.n)
    b[:, run.start : run.stop] = pool.b
    return a.flatten(1, 2), b


def _look_up(device: torch.device, rows: int, tokens: int, hidden: int, rank: int) -> Case:
    """Two adapters of an embedding."""
    pool = _filled(PoolShape(rank, tokens, (hidden,), BF16, by_token=True), (rank, rank), 1.0, device)
    adapters, by_adapter = _taking_turns(rows, 2, device)
    ids = torch.arange(rows, dtype=torch.int32, device=device) * 7 % tokens
    before = reference.filled((rows, hidden), 1.0, BF16, device)
    out, h = before.clone(), workspace(pool, rows)

    def run() -> Tensor:
        return add_looked_up(ids, pool, by_adapter, h, out)

    def expected() -> Tensor:
        return reference.looked_up(ids.tolist(), pool.a, pool.b, [rank] * 2, adapters.tolist(), before)

    return Case(
        f"{rows} rows of {hidden} by {tokens} tokens, rank {rank}",
        run,
        expected,
        tolerance=rounding(BF16, BF16, terms=rank),
        bytes=2 * (rows * (rank + 2 * hidden) + 2 * rank * hidden),
        written=2 * rows * hidden,
        flops=2 * rows * rank * hidden,
    )


def _own(
    device: torch.device, tokens: int, width: int, most: int, dtype: torch.dtype
) -> tuple[OwnTables, list[int]]:
    """Two adapters, with as many rows as there can be and with one, of every seventh token; and how many."""
    shape = OwnShape(tokens, most, width, dtype)
    tables = shape.over(torch.zeros(2, shape.nbytes, dtype=torch.uint8, device=device))
    counts = [most, 1]
    if device.type == "meta":
        return tables, counts
    for place, count in enumerate(counts):
        own = torch.arange(count, dtype=torch.int32, device=device) * 7 % tokens
        tables.tokens[place, :count] = own
        tables.row_of[place, own.long()] = torch.arange(1, count + 1, dtype=torch.int32, device=device)
    tables.counts.copy_(torch.tensor(counts))
    for table in (tables.embedding, tables.head):
        table.copy_(reference.filled(table.shape, width**-0.5, dtype, device))
    tables.bias.copy_(reference.filled(tables.bias.shape, 1.0, FP32, device))
    return tables, counts


def _own_embedding(device: torch.device, rows: int, tokens: int, width: int, most: int) -> Case:
    tables, _ = _own(device, tokens, width, most, BF16)
    slot = torch.arange(rows, dtype=torch.int32, device=device)
    ids, places = slot * 7 % tokens, slot % 3 - 1
    before = reference.filled((rows, width), 1.0, BF16, device)
    out = before.clone()

    def run() -> Tensor:
        return enter_own(ids, slot, places, tables, out)

    def expected() -> Tensor:
        found = tables.row_of[places.clamp(min=0).long(), ids.long()].long() * (places >= 0)
        own = tables.embedding[places.clamp(min=0).long(), (found - 1).clamp(min=0)]
        return torch.where(found[:, None] > 0, own, before)

    return Case(
        f"{rows} rows of {width}, {most} of an adapter's own",
        run,
        expected,
        tolerance=0.0,
        bytes=rows * (16 + 4 * width),
        written=2 * rows * width,
    )


def _own_logits(
    device: torch.device,
    rows: int,
    tokens: int,
    width: int,
    most: int,
    *,
    dtype: torch.dtype = BF16,
    cap: float = 0.0,
) -> Case:
    tables, counts = _own(device, tokens, width, most, dtype)
    places, by_place = _taking_turns(rows, 2, device)
    x = reference.filled((rows, width), 1.0, BF16, device)
    before = reference.filled((rows, tokens), 1.0, BF16, device)
    out = before.clone()

    def run() -> Tensor:
        return own_logits(x, tables, by_place, out, cap=cap)

    def expected() -> Tensor:
        lists = tables.tokens, counts, places.tolist()
        return reference.own_logits(x, tables.head, tables.bias, *lists, before, cap)

    return Case(
        f"logits of {rows} rows by {most} own of {width}, {str(dtype).removeprefix('torch.')}"
        f"{', capped' if cap else ''}",
        run,
        expected,
        tolerance=rounding(BF16, BF16, terms=width),
        bytes=2 * rows * width + dtype.itemsize * most * width + 2 * rows * most,
        written=2 * rows * most,
        flops=rows * most * width,
        arithmetic="fp32" if dtype == FP32 else "bf16",
    )


def _sort(device: torch.device, rows: int, adapters: int) -> Case:
    """Adapters take turns, and every fifth row has none."""
    slot = torch.arange(rows, dtype=torch.int32, device=device)
    adapter_of = torch.where(slot % 5 == 4, -1, slot % adapters)
    out = unsorted(rows, adapters, device)

    def run() -> Tensor:
        return sort_rows(adapter_of, adapters, out, slot).order

    def expected() -> Tensor:
        return torch.where(adapter_of < 0, adapters, adapter_of).argsort(stable=True)

    return Case(
        f"sort {rows} rows by {adapters} adapters",
        run,
        expected,
        tolerance=0.0,
        bytes=12 * rows + 12 * len(out.tiles),
        written=4 * rows + 12 * len(out.tiles),
        peers={"torch": expected},
    )
