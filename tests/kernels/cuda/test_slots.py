from __future__ import annotations

import pytest
import torch

from slipway_kernels.slots import apply_runs, finish, prepare, reference
from slipway_kernels.slots.op import MOST_PIECES

I32, I64 = torch.int32, torch.int64


class State:
    """Slots, some of them with known and computed tokens."""

    def __init__(self, device: torch.device, num_slots: int = 6, max_len: int = 2100) -> None:
        self.max_len = max_len
        wide = torch.randint(1, 30_000, (num_slots, max_len + 4), device=device, dtype=I32)
        self.tokens = wide[:, :max_len]
        self.num_computed = torch.arange(num_slots, device=device, dtype=I32) * 7
        self.num_tokens = self.num_computed + 1

    def copy(self) -> State:
        other = object.__new__(State)
        other.max_len = self.max_len
        other.tokens, other.num_computed = self.tokens.clone(), self.num_computed.clone()
        other.num_tokens = self.num_tokens.clone()
        return other


def prepared(
    use: object, state: State, slots: list[int], query_start: list[int], rows: int
) -> list[torch.Tensor]:
    device = state.tokens.device
    of_rows = [torch.full((rows,), 99, device=device, dtype=I32) for _ in range(3)]
    of_requests = [torch.full((len(slots),), 99, device=device, dtype=I32) for _ in range(2)]
    batch = (torch.tensor(of, device=device, dtype=I32) for of in (slots, query_start))
    use(*batch, state.tokens, state.num_computed, *of_rows, *of_requests)
    return of_rows + of_requests


@pytest.mark.parametrize(
    ("slots", "query_start", "rows"),
    [
        ([0], [0, 1], 1),
        ([3, 1, 5, 0], [0, 1, 2, 3, 4], 8),  # a graph's batch, padded rows behind it
        ([2, 4, -1, -1], [0, 1, 2, 2, 2], 4),  # and padded requests
        ([2, -1, 4], [0, 1, 3, 5], 6),  # padding that has rows
        ([1, 0, 5], [0, 1, 1, 301], 301),  # a request without tokens, one with many
        ([4], [0, 2000], 2000),  # more than one piece
        ([], [0], 3),
    ],
)
def test_rows_are_the_tokens_that_come_next(
    device: torch.device, slots: list[int], query_start: list[int], rows: int
) -> None:
    state = State(device)
    expected = prepared(reference.prepare, state, slots, query_start, rows)
    for result, wanted in zip(prepared(prepare, state, slots, query_start, rows), expected, strict=True):
        assert torch.equal(result, wanted)


def test_a_position_beyond_the_slot_reads_nothing(device: torch.device) -> None:
    state = State(device, max_len=16)
    state.num_computed[1] = 14
    token_ids, positions, *_ = prepared(prepare, state, [1], [0, 4], 4)
    assert positions.tolist() == [14, 15, 16, 17]
    assert token_ids.tolist() == [*state.tokens[1, 14:].tolist(), 0, 0]


def test_a_drawn_token_is_appended_and_the_step_counted(device: torch.device) -> None:
    state = State(device)
    expected = state.copy()
    slots = torch.tensor([3, -1, 0, 5], device=device, dtype=I32)
    query_start = torch.tensor([0, 1, 2, 7, 10], device=device, dtype=I32)
    drawn = torch.tensor([123, 45, -1, 6], device=device, dtype=I32)
    for use, one in ((finish, state), (reference.finish, expected)):
        use(slots, query_start, drawn, one.tokens, one.num_tokens, one.num_computed, max_len=one.max_len)
    assert torch.equal(state.tokens, expected.tokens)
    assert torch.equal(state.num_tokens, expected.num_tokens)
    assert torch.equal(state.num_computed, expected.num_computed)
    assert state.tokens[3, 22] == 123
    assert state.num_tokens.tolist() == [1, 8, 15, 23, 29, 37]


def test_a_full_slot_takes_no_token(device: torch.device) -> None:
    state = State(device, num_slots=200, max_len=1400)
    state.num_tokens[:] = 1300
    state.num_tokens[7] = 1299
    expected = state.tokens.clone()
    expected[7, 1299] = 77
    slots = torch.arange(200, device=device, dtype=I32)
    query_start = torch.arange(201, device=device, dtype=I32)
    drawn = torch.full((200,), 77, device=device, dtype=I32)
    finish(slots, query_start, drawn, state.tokens, state.num_tokens, state.num_computed, max_len=1300)
    assert torch.equal(state.tokens, expected)
    assert (state.num_tokens == 1300).all()


@pytest.mark.parametrize("dtype", [I32, I64])
def test_runs_of_any_length_reach_their_words(device: torch.device, dtype: torch.dtype) -> None:
    counts = [1, 0, 5000, 3, 1024]
    arena = torch.zeros(20_000, device=device, dtype=I32)
    payload = torch.randint(1, 1000, (sum(counts),), device=device, dtype=I32)
    runs, source = [], 0
    for index, count in enumerate(counts):
        runs.append((index * 6000 % 17_000, source, count))
        source += count
    table = torch.tensor(runs, device=device, dtype=dtype)
    expected = arena.clone()
    reference.apply_runs(expected, table, payload)
    apply_runs(arena, table, payload)
    assert torch.equal(arena, expected)


def test_a_run_longer_than_its_programs_together_is_copied_whole(device: torch.device) -> None:
    words = MOST_PIECES * 1024 + 77
    arena, payload = torch.zeros(2, words, device=device, dtype=I32)
    payload += 5
    apply_runs(arena, torch.tensor([[0, 0, words]], device=device), payload)
    assert torch.equal(arena, payload)


def test_a_run_stops_at_the_end_of_the_arena(device: torch.device) -> None:
    memory = torch.zeros(64, device=device, dtype=I32)
    payload = torch.ones(64, device=device, dtype=I32)
    apply_runs(memory[:32], torch.tensor([[28, 0, 16]], device=device), payload)
    assert memory.nonzero().flatten().tolist() == [28, 29, 30, 31]


def test_an_arena_of_more_than_two_billion_words_is_reached(device: torch.device) -> None:
    arena = torch.empty(2**31 + 1000, device=device, dtype=I32)
    payload = torch.arange(8, device=device, dtype=I32)
    apply_runs(arena, torch.tensor([[2**31 + 500, 2, 5]], device=device), payload)
    assert arena[2**31 + 500 : 2**31 + 505].tolist() == [2, 3, 4, 5, 6]


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    state, words = State(device), torch.zeros(8, device=device, dtype=I32)
    with pytest.raises(ValueError, match=r"runs are torch.int32 \[8\]: give int32 or int64 \[n, 3\]"):
        apply_runs(words, words, words)
    with pytest.raises(ValueError, match=r"There are 8 requests, query_start is \[8\]"):
        finish(words, words, words, state.tokens, state.num_tokens, state.num_computed, max_len=9)
    with pytest.raises(ValueError, match=r"A tensor is torch.int64 .* int32"):
        finish(
            words[:7], words, words[:7].long(), state.tokens, state.num_tokens, state.num_computed, max_len=9
        )
