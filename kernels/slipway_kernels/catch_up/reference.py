"""What a model that guesses does with its slots, request by request."""

from __future__ import annotations

from torch import Tensor


def catch_up(
    slots: Tensor,
    row_start: Tensor,
    ahead: Tensor,
    num_tokens: Tensor,
    num_computed: Tensor,
    own_computed: Tensor,
    own_rows: Tensor,
    wanted: Tensor,
    *,
    max_len: int,
    length: int,
    block: int,
) -> None:
    for request, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        known, computed = int(num_tokens[slot]), int(num_computed[slot])
        drew = known == computed + 1
        drafts = max(min(int(ahead[request]), length + 1 - known, max_len - known), 0) if drew else 0
        own = min(int(own_computed[slot]), computed)
        left = max((known if drafts else min(computed, length) // block * block) - own, 0)
        rows = min(left, int(row_start[request + 1] - row_start[request]))
        own_computed[slot] = own
        own_rows[slot] = rows
        wanted[slot] = drafts if rows == left else 0


def last_rows(
    slots: Tensor,
    query_start: Tensor,
    lengths: Tensor,
    num_drafts: Tensor,
    wanted: Tensor,
    draw_rows: Tensor,
    draw_slots: Tensor,
    draw_lengths: Tensor,
) -> None:
    for request, slot in enumerate(slots.tolist()):
        draws = slot >= 0 and wanted[slot] > num_drafts[slot]
        draw_rows[request] = max(int(query_start[request + 1]) - 1, 0)
        draw_slots[request] = slot if draws else -1
        draw_lengths[request] = lengths[request] if draws else 0


def append(
    slots: Tensor,
    drawn: Tensor,
    tokens: Tensor,
    num_tokens: Tensor,
    num_drafts: Tensor,
    own_computed: Tensor,
    own_rows: Tensor,
    wanted: Tensor,
) -> None:
    for request, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        own_computed[slot] += own_rows[slot]
        if wanted[slot] > num_drafts[slot] and drawn[request] >= 0:
            tokens[slot, num_tokens[slot] + num_drafts[slot]] = drawn[request]
            num_drafts[slot] += 1
        else:
            wanted[slot] = 0
        own_rows[slot] = int(wanted[slot] > num_drafts[slot])
