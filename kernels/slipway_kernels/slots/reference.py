"""What the kernels over slots compute, request by request."""

from __future__ import annotations

from torch import Tensor


def apply_runs(arena: Tensor, runs: Tensor, payload: Tensor) -> None:
    for destination, source, count in runs.tolist():
        arena[destination : destination + count] = payload[source : source + count]


def prepare(
    slots: Tensor,
    row_start: Tensor,
    draws: Tensor,
    tokens: Tensor,
    num_computed: Tensor,
    num_drafts: Tensor,
    token_ids: Tensor,
    positions: Tensor,
    row_slots: Tensor,
    query_start: Tensor,
    lengths: Tensor,
    draw_rows: Tensor,
    draw_slots: Tensor,
    draw_lengths: Tensor,
) -> None:
    token_ids.zero_()
    positions.zero_()
    row_slots.fill_(-1)
    lengths.zero_()
    draw_slots.fill_(-1)
    draw_lengths.zero_()
    begin = int(row_start[0])
    for request, slot in enumerate(slots.tolist()):
        most = max(int(draws[request]) - 1, 0)
        new = int(row_start[request + 1] - row_start[request]) - most
        drafts = 0
        if slot >= 0:
            known = int(num_computed[slot]) + new
            drafts = max(min(int(num_drafts[slot]), most, tokens.shape[1] - known), 0)
            at = slice(known - new, known + drafts)
            rows = slice(begin, begin + new + drafts)
            token_ids[rows] = tokens[slot, at]
            positions[rows] = positions.new_tensor(range(at.start, at.stop))
            row_slots[rows] = slot
            lengths[request] = at.stop
        end = begin + new + drafts
        for number in range(draw_rows.shape[1]):
            draw_rows[request, number] = max(end - 1 - max(drafts - number, 0), 0)
            if slot >= 0 and number <= drafts and draws[request] > 0:
                draw_slots[request, number] = slot
                draw_lengths[request, number] = known + number
        query_start[request] = begin
        begin = end
    query_start[len(slots)] = begin


def finish(
    slots: Tensor,
    query_start: Tensor,
    drawn: Tensor,
    counts: Tensor,
    tokens: Tensor,
    num_tokens: Tensor,
    num_computed: Tensor,
    num_drafts: Tensor,
) -> None:
    counts.zero_()
    for request, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        num_computed[slot] += query_start[request + 1] - query_start[request]
        num_drafts[slot] = 0
        start = int(num_tokens[slot])
        for position, token in enumerate(drawn[request].tolist(), start):
            if token < 0:
                break
            counts[request] += 1
            num_computed[slot] = position
            if position == tokens.shape[1]:
                break
            num_tokens[slot] = position + 1
            draft, tokens[slot, position] = int(tokens[slot, position]), token
            if draft != token:
                break
