"""Prompt lookup's cases: as many requests and as long contexts as servers have."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.ngram import reference
from slipway_kernels.ngram.op import look_up

MOST, MIN_N, MAX_N = 5, 2, 5


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    full = [(1, 2048), (64, 2048), (256, 2048), (1, 131_072), (16, 131_072)]
    for requests, known in full if size == "full" else [(1, 50), (3, 50)]:
        yield _case(device, requests, known)


def _case(device: torch.device, requests: int, known: int) -> Case:
    """Every request finds the longest n-gram, in the midst of its tokens."""
    # Rows begin at multiples of 128 bytes, as those of the worker's slots do.
    width = -(-(known + MOST) // 32) * 32
    tokens = torch.arange(width, device=device, dtype=torch.int32).repeat(requests, 1)[:, : known + MOST]
    tokens[:, known - MAX_N : known] = tokens[:, known // 2 : known // 2 + MAX_N]
    slots, counts = torch.arange(requests, device=device, dtype=torch.int32), torch.ones_like(tokens[:, 0])
    num_tokens, num_drafts = counts * known, counts * 0

    def run() -> Tensor:
        look_up(slots, counts, tokens, num_tokens, num_drafts, most=MOST, min_n=MIN_N, max_n=MAX_N)
        return tokens[:, known:]

    def expected() -> Tensor:
        own = tokens.clone()
        reference.look_up(
            slots, counts, own, num_tokens, num_drafts.clone(), most=MOST, min_n=MIN_N, max_n=MAX_N
        )
        return own[:, known:]

    return Case(
        f"look up {requests} requests of {known}",
        run,
        expected,
        bytes=4 * requests * (known + MOST),
        written=4 * requests * MOST,
    )
