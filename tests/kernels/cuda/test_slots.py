from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from slipway_kernels.slots import apply_runs, finish, prepare, reference
from slipway_kernels.slots.op import MOST_PIECES

I32, I64 = torch.int32, torch.int64


class State:
    """Slots, some of them with known and computed tokens, and with drafts behind them."""

    def __init__(self, device: torch.device, num_slots: int = 6, max_len: int = 2100) -> None:
        wide = torch.randint(1, 30_000, (num_slots, max_len + 4), device=device, dtype=I32)
        self.tokens = wide[:, :max_len]
        self.num_computed = torch.arange(num_slots, device=device, dtype=I32) * 7
        self.num_tokens = self.num_computed + 1
        self.num_drafts = torch.arange(num_slots, device=device, dtype=I32)

    def copy(self) -> State:
        other = object.__new__(State)
        for name, values in vars(self).items():
            setattr(other, name, values.clone())
        return other


Prepared = dict[str, torch.Tensor]


def prepared(
    use: Callable[..., None],
    state: State,
    slots: list[int],
    row_start: list[int],
    rows: int,
    draws: list[int] | None = None,
) -> Prepared:
    device, requests = state.tokens.device, len(slots)
    each = max(draws or [1], default=1)
    shapes = dict.fromkeys(("token_ids", "positions", "row_slots"), (rows,))
    shapes |= {"query_start": (requests + 1,), "lengths": (requests,)}
    shapes |= dict.fromkeys(("draw_rows", "draw_slots", "draw_lengths"), (requests, each))
    written = {name: torch.full(shape, 99, device=device, dtype=I32) for name, shape in shapes.items()}
    asked = (slots, row_start, [1] * requests if draws is None else draws)
    batch = (torch.tensor(of, device=device, dtype=I32) for of in asked)
    use(*batch, state.tokens, state.num_computed, state.num_drafts, **written)
    return written


@pytest.mark.parametrize(
    ("slots", "row_start", "rows", "draws"),
    [
        ([0], [0, 1], 1, None),
        ([3, 1, 5, 0], [0, 1, 2, 3, 4], 8, None),  # a graph's batch, padded rows behind it
        ([2, 4, -1, -1], [0, 1, 2, 2, 2], 4, None),  # and padded requests
        ([2, -1, 4], [0, 1, 3, 5], 6, None),  # padding that has rows
        ([1, 0, 5], [0, 1, 1, 301], 301, [1, 0, 0]),  # a request without tokens, one with many
        ([4], [0, 2000], 2000, None),  # more than one piece
        ([], [0], 3, None),
        ([3, 1, 5, 0], [0, 4, 8, 12, 16], 16, [4, 4, 4, 4]),  # slot n has n drafts
        ([5, 3, -1, -1], [0, 3, 6, 6, 6], 12, [3, 3, 0, 0]),  # more drafts than the plan allows
        ([2, 0, 4, 1], [0, 1, 9, 14, 18], 20, [1, 0, 3, 4]),  # beside prompts, some of which end here
    ],
)
def test_rows_are_the_tokens_that_come_next(
    device: torch.device, slots: list[int], row_start: list[int], rows: int, draws: list[int] | None
) -> None:
    state = State(device)
    expected = prepared(reference.prepare, state, slots, row_start, rows, draws)
    found = prepared(prepare, state, slots, row_start, rows, draws)
    for name, wanted in expected.items():
        assert torch.equal(found[name], wanted), name


def test_rows_of_missing_drafts_are_left_to_those_that_follow(device: torch.device) -> None:
    """More requests than one look counts: slot n has n % 3 drafts, and two are allowed."""
    state = State(device, num_slots=300, max_len=2200)
    state.num_drafts %= 3
    starts = list(range(0, 3 * 300 + 1, 3))
    found = prepared(prepare, state, list(range(300)), starts, 900, [3] * 300)
    assert found["query_start"].diff().tolist() == [1 + slot % 3 for slot in range(300)]
    assert found["row_slots"].tolist() == [s for s in range(300) for _ in range(1 + s % 3)] + [-1] * 300
    assert (found["draw_slots"] >= 0).sum(1).tolist() == [1 + slot % 3 for slot in range(300)]


def test_a_position_beyond_the_slot_reads_nothing(device: torch.device) -> None:
    state = State(device, max_len=16)
    state.num_computed[1] = 14
    found = prepared(prepare, state, [1], [0, 4], 4)
    assert found["positions"].tolist() == [14, 15, 16, 17]
    assert found["token_ids"].tolist() == [*state.tokens[1, 14:].tolist(), 0, 0]


def test_drafts_beyond_the_slot_are_not_verified(device: torch.device) -> None:
    state = State(device, max_len=16)
    state.num_computed[5] = 13
    found = prepared(prepare, state, [5], [0, 5], 5, [5])
    assert found["positions"].tolist() == [13, 14, 15, 0, 0]
    assert found["draw_lengths"].tolist() == [[14, 15, 16, 0, 0]]


def finished(
    use: Callable[..., None], state: State, slots: list[int], starts: list[int], drawn: object
) -> list:
    device = state.tokens.device
    of = [torch.tensor(values, device=device, dtype=I32) for values in (slots, starts, drawn)]
    counts = torch.full((len(slots),), 99, device=device, dtype=I32)
    use(*of, counts, **vars(state))
    return counts.tolist()


def test_a_drawn_token_is_appended_and_the_step_counted(device: torch.device) -> None:
    state = State(device)
    expected = state.copy()
    for use, one in ((finish, state), (reference.finish, expected)):
        counts = finished(use, one, [3, -1, 0, 5], [0, 1, 2, 7, 8], [[123], [45], [-1], [6]])
        assert counts == [1, 0, 0, 1]
    for name, values in vars(expected).items():
        assert torch.equal(vars(state)[name], values), name
    assert state.tokens[3, 22] == 123
    assert state.num_tokens.tolist() == [1, 8, 15, 23, 29, 37]
    assert state.num_computed.tolist() == [5, 7, 14, 22, 28, 36]
    assert state.num_drafts.tolist() == [0, 1, 2, 0, 4, 0]


@pytest.mark.parametrize(
    ("wrong", "verified", "failed", "count"),
    [
        (0, 3, None, 1),  # the first draft is wrong
        (2, 3, None, 3),
        (3, 3, None, 4),  # all are right
        (3, 2, None, 3),  # fewer were verified, though what lies behind them would fit
        (3, 3, 1, 1),  # the row behind the first draft failed: what was drawn before stays
        (3, 3, 0, 0),
    ],
)
def test_tokens_count_as_long_as_they_are_the_drafts(
    device: torch.device, wrong: int, verified: int, failed: int | None, count: int
) -> None:
    state = State(device)
    drafts = state.tokens[4, 29:33].tolist()
    drawn = [*drafts[:wrong], *[7] * (4 - wrong)][: verified + 1] + [-1] * (3 - verified)
    if failed is not None:
        drawn[failed] = -1
    expected = state.copy()
    for use, one in ((finish, state), (reference.finish, expected)):
        assert finished(use, one, [4], [0, 1 + verified], [drawn]) == [count]
    assert torch.equal(state.tokens, expected.tokens)
    assert state.tokens[4, 29 : 29 + count].tolist() == drawn[:count]
    assert state.num_tokens[4] == expected.num_tokens[4] == 29 + count
    computed = 28 + count if count else 29 + verified
    assert state.num_computed[4] == expected.num_computed[4] == computed
    assert state.num_drafts[4] == expected.num_drafts[4] == 0


def test_a_full_slot_takes_no_token(device: torch.device) -> None:
    state = State(device, num_slots=200, max_len=1400)
    state.num_tokens[:] = 1400
    state.num_tokens[7] = 1399
    expected = state.tokens.clone()
    expected[7, 1399] = 77
    counts = finished(finish, state, list(range(200)), list(range(201)), [[77, -1]] * 200)
    assert counts == [1] * 200
    assert torch.equal(state.tokens, expected)
    assert (state.num_tokens == 1400).all()


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
    rest = {**vars(state), "counts": words[:7], "drawn": words[:7, None]}
    with pytest.raises(ValueError, match=r"There are 8 requests, query_start is \[8\]"):
        finish(words, words, **rest)
    with pytest.raises(ValueError, match=r"A tensor is torch.int64 .* int32"):
        finish(words[:7], words, **(rest | {"counts": words[:7].long()}))
