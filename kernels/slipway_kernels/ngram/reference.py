"""Prompt lookup, request by request."""

from __future__ import annotations

from torch import Tensor


def look_up(
    slots: Tensor,
    counts: Tensor,
    tokens: Tensor,
    num_tokens: Tensor,
    num_drafts: Tensor,
    *,
    most: int,
    min_n: int,
    max_n: int,
) -> None:
    for request, slot in enumerate(slots.tolist()):
        if slot < 0 or counts[request] == 0:
            continue
        known = tokens[slot, : num_tokens[slot]].tolist()
        drafts = _go_on(known, min_n, max_n)[: min(most, tokens.shape[1] - len(known))]
        tokens[slot, len(known) : len(known) + len(drafts)] = tokens.new_tensor(drafts)
        num_drafts[slot] = len(drafts)


def _go_on(known: list[int], min_n: int, max_n: int) -> list[int]:
    """What followed the first place of the longest n-gram at the end that stands before."""
    for n in range(min(max_n, len(known) - 1), min_n - 1, -1):
        for start in range(len(known) - n):
            if known[start : start + n] == known[-n:]:
                return known[start + n :]
    return []
