"""The slots' cases: decoding steps, prefill steps, and uploads of both."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.slots.op import apply_runs, finish, prepare


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    full = size == "full"
    for requests, new, drafts in (
        [(1, 1, 0), (64, 1, 0), (256, 1, 0), (1, 8192, 0), (8, 1024, 0), (1, 1, 4), (64, 1, 4), (256, 1, 1)]
        if full
        else [(3, 5, 0), (3, 1, 2)]
    ):
        yield from _step(device, requests, new, drafts)
    for runs, words in [(64, 4), (512, 4), (1, 100_000), (4096, 16)] if full else [(3, 5)]:
        yield _upload(device, runs, words)


def _step(device: torch.device, requests: int, new: int, drafts: int) -> Iterator[Case]:
    """Requests of `new` tokens; the plan allows `drafts` of each, and half of them have one less."""
    each = new + drafts
    rows, max_len = requests * each, each + 8
    slots = torch.arange(requests, device=device, dtype=torch.int32)
    row_start = torch.arange(requests + 1, device=device, dtype=torch.int32) * each
    draws = torch.full((requests,), 1 + drafts, device=device, dtype=torch.int32)
    tokens = torch.ones(requests, max_len, device=device, dtype=torch.int32)
    num_computed = torch.zeros(requests, device=device, dtype=torch.int32)
    num_drafts = (drafts - slots % 2).clamp(min=0)
    query_start = torch.zeros_like(row_start)
    lengths, counts, computed, left = torch.zeros(4, requests, device=device, dtype=torch.int32).unbind()
    of_rows = torch.zeros(3, rows, device=device, dtype=torch.int32).unbind()
    of_draws = torch.zeros(3, requests, 1 + drafts, device=device, dtype=torch.int32).unbind()
    written = dict(zip(("token_ids", "positions", "row_slots"), of_rows, strict=True))
    written |= dict(zip(("draw_rows", "draw_slots", "draw_lengths"), of_draws, strict=True))
    written |= {"query_start": query_start, "lengths": lengths}

    def begin() -> Tensor:
        prepare(slots, row_start, draws, tokens, num_computed, num_drafts, **written)
        return lengths

    named = f"{requests} requests of {new}" + (f" and {drafts} drafts" if drafts else "")
    yield Case(
        f"prepare {named}",
        begin,
        lambda: new + num_drafts,
        bytes=rows * 16 + requests * (28 + 12 * (1 + drafts)),
        written=rows * 12 + requests * (8 + 12 * (1 + drafts)),
    )
    known = torch.ones(requests, device=device, dtype=torch.int32)
    drawn = torch.ones(requests, 1 + drafts, device=device, dtype=torch.int32)

    def end() -> Tensor:
        finish(slots, row_start, drawn, counts, tokens, known, computed, left)
        return counts

    yield Case(
        f"finish {named}",
        end,
        bytes=requests * (36 + 8 * drafts),
        written=requests * (20 + 4 * drafts),
    )


def _upload(device: torch.device, runs: int, words: int) -> Case:
    arena = torch.zeros(2 * runs * words, device=device, dtype=torch.int32)
    payload = torch.arange(runs * words, device=device, dtype=torch.int32)
    start = torch.arange(runs, device=device) * words
    table = torch.stack((2 * start, start, torch.full_like(start, words)), 1)

    def run() -> Tensor:
        apply_runs(arena, table, payload)
        return arena

    def expected() -> Tensor:
        return torch.stack(
            (payload.view(runs, words), torch.zeros_like(payload).view(runs, words)), 1
        ).flatten()

    return Case(
        f"apply {runs} runs of {words}",
        run,
        expected,
        bytes=runs * (8 * words + 24),
        written=runs * 4 * words,
    )
