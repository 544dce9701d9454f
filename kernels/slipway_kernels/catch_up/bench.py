"""The cases of a model that guesses: a pass of each of its kinds."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slipway_kernels.catch_up.op import append, catch_up, last_rows
from slipway_kernels.cuda.cases import Case, Size

KNOWN, AHEAD = 40, 4


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for requests in (1, 64, 256) if size == "full" else (3,):
        yield from _passes(device, requests)


def _passes(device: torch.device, requests: int) -> Iterator[Case]:
    """Every request has drawn, and the model is one token behind the target."""
    slots = torch.arange(requests, device=device, dtype=torch.int32)
    row_start = torch.arange(requests + 1, device=device, dtype=torch.int32) * 2
    ones = torch.ones_like(slots)
    known, ahead = ones * KNOWN, ones * AHEAD
    state = torch.zeros(6, requests, device=device, dtype=torch.int32).unbind()
    own, rows, wanted, *draws = state
    tokens = torch.zeros(requests, KNOWN + 24, device=device, dtype=torch.int32)
    num_drafts = torch.zeros_like(slots)
    sizes = {"max_len": KNOWN + 24, "length": KNOWN + 24, "block": 16}

    def begin() -> Tensor:
        own.copy_(known - 2)
        catch_up(slots, row_start, ahead, known, known - 1, own, rows, wanted, **sizes)
        return torch.stack((own, rows, wanted))

    def draw() -> Tensor:
        last_rows(slots, row_start, known, num_drafts * 0, ahead, *draws)
        return torch.stack(draws)

    def end() -> Tensor:
        own.copy_(known - 2)
        found, left, more = num_drafts * 0, ones * 2, ahead.clone()
        append(slots, slots, tokens, known, found, own, left, more)
        return torch.stack((own, left, more, found))

    words = 4 * requests
    yield Case(
        f"catch up {requests} requests",
        begin,
        lambda: torch.stack((known - 2, ones * 2, ahead)),
        bytes=9 * words,
        written=3 * words,
    )
    yield Case(
        f"last rows of {requests} requests",
        draw,
        lambda: torch.stack((row_start[1:] - 1, slots, known)),
        bytes=8 * words,
        written=3 * words,
    )
    yield Case(
        f"append to {requests} requests",
        end,
        lambda: torch.stack((known, ones, ahead, ones)),
        bytes=12 * words,
        written=5 * words,
    )
