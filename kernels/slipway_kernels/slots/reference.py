"""What the kernels over slots compute, request by request."""

from __future__ import annotations

from torch import Tensor


def apply_runs(arena: Tensor, runs: Tensor, payload: Tensor) -> None:
    for destination, source, count in runs.tolist():
        arena[destination : destination + count] = payload[source : source + count]


def prepare(
    slots: Tensor,
    query_start: Tensor,
    tokens: Tensor,
    num_computed: Tensor,
    token_ids: Tensor,
    positions: Tensor,
    row_slots: Tensor,
    lengths: Tensor,
    last_rows: Tensor,
) -> None:
    token_ids.zero_()
    positions.zero_()
    row_slots.fill_(-1)
    lengths.zero_()
    for request, slot in enumerate(slots.tolist()):
        begin, end = query_start[request : request + 2].tolist()
        last_rows[request] = max(end - 1, 0)
        if slot >= 0:
            done = int(num_computed[slot])
            token_ids[begin:end] = tokens[slot, done : done + end - begin]
            positions[begin:end] = positions.new_tensor(range(done, done + end - begin))
            row_slots[begin:end] = slot
            lengths[request] = done + end - begin


def finish(
    slots: Tensor,
    query_start: Tensor,
    drawn: Tensor,
    tokens: Tensor,
    num_tokens: Tensor,
    num_computed: Tensor,
    max_len: int,
) -> None:
    for request, slot in enumerate(slots.tolist()):
        if slot >= 0:
            num_computed[slot] += query_start[request + 1] - query_start[request]
            if drawn[request] >= 0 and num_tokens[slot] < max_len:
                tokens[slot, num_tokens[slot]] = drawn[request]
                num_tokens[slot] += 1
