"""The slots' cases: decoding steps, prefill steps, and uploads of both."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.slots.op import apply_runs, finish, prepare


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    full = size == "full"
    for requests, each in [(1, 1), (64, 1), (256, 1), (1, 8192), (8, 1024)] if full else [(3, 5)]:
        yield from _step(device, requests, each)
    for runs, words in [(64, 4), (512, 4), (1, 100_000), (4096, 16)] if full else [(3, 5)]:
        yield _upload(device, runs, words)


def _step(device: torch.device, requests: int, each: int) -> Iterator[Case]:
    rows, max_len = requests * each, each + 8
    slots = torch.arange(requests, device=device, dtype=torch.int32)
    query_start = torch.arange(requests + 1, device=device, dtype=torch.int32) * each
    tokens = torch.ones(requests, max_len, device=device, dtype=torch.int32)
    num_computed = torch.zeros(requests, device=device, dtype=torch.int32)
    of_rows = torch.zeros(3, rows, device=device, dtype=torch.int32)
    of_requests = torch.zeros(2, requests, device=device, dtype=torch.int32)

    def begin() -> Tensor:
        prepare(slots, query_start, tokens, num_computed, *of_rows, *of_requests)
        return of_rows[1]

    yield Case(
        f"prepare {requests} requests of {each}",
        begin,
        lambda: torch.arange(each, device=device, dtype=torch.int32).repeat(requests),
        bytes=rows * 16 + requests * 24,
    )
    computed, known = torch.zeros(2, requests, device=device, dtype=torch.int32)
    drawn = torch.ones(requests, device=device, dtype=torch.int32)

    def end() -> Tensor:
        finish(slots, query_start, drawn, tokens, known, computed, max_len=max_len)
        return tokens

    yield Case(f"finish {requests} requests", end, bytes=requests * 32)


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

    return Case(f"apply {runs} runs of {words}", run, expected, bytes=runs * (8 * words + 24))
