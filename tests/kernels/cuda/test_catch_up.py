"""Slots of a model that guesses for another, against the reference: request by request."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipway_kernels.catch_up import append, catch_up, last_rows, reference

SLOTS, MAX_LEN = 300, 90


def numbers(device: torch.device, low: int, high: int, count: int = SLOTS) -> Tensor:
    return torch.randint(low, high, (count,), device=device, dtype=torch.int32)


def batch(device: torch.device) -> Tensor:
    """More requests than one program has, in any order, some of them padding."""
    slots = torch.randperm(SLOTS, device=device).int()[:200]
    slots[::7] = -1
    return slots


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, expected in theirs.items():
        assert torch.equal(ours[name], expected), name


@pytest.mark.parametrize("length", [30, MAX_LEN])
def test_it_follows_to_the_last_token_or_to_the_last_whole_block(device: torch.device, length: int) -> None:
    slots = batch(device)
    row_start = torch.cat((torch.zeros_like(slots[:1]), numbers(device, 0, 40, 200).cumsum(0).int()))
    computed = numbers(device, 0, MAX_LEN - 1)
    state = {
        "num_tokens": computed + numbers(device, 0, 3).clamp(max=1),  # most have drawn
        "num_computed": computed,
        "own_computed": (computed + numbers(device, -40, 5)).clamp(min=0),
        "own_rows": numbers(device, 0, 9),
        "wanted": numbers(device, 0, 9),
    }
    expected = {name: values.clone() for name, values in state.items()}
    ahead, sizes = numbers(device, 0, 5, 200), {"max_len": MAX_LEN, "length": length, "block": 8}
    catch_up(slots, row_start, ahead, **state, **sizes)
    reference.catch_up(slots, row_start, ahead, **expected, **sizes)
    same(state, expected)
    real = slots[slots >= 0].long()
    end = (state["own_computed"] + state["own_rows"])[real]
    assert (end <= length)[state["own_rows"][real] > 0].all()
    assert (end == state["num_tokens"][real])[state["wanted"][real] > 0].all()
    assert (state["wanted"][real] > 0).any()


def test_draws_are_of_last_rows_and_each_is_a_draft(device: torch.device) -> None:
    slots = batch(device)
    starts = torch.cat((torch.zeros_like(slots[:1]), numbers(device, 0, 4, 200).cumsum(0).int()))
    state = {
        "num_tokens": numbers(device, 1, MAX_LEN - 8),
        "num_drafts": numbers(device, 0, 4),
        "own_computed": numbers(device, 0, 50),
        "own_rows": numbers(device, 0, 9),
        "wanted": numbers(device, 0, 5),
    }
    ours, theirs = (dict.fromkeys(("draw_rows", "draw_slots", "draw_lengths")) for _ in range(2))
    for found, use in ((ours, last_rows), (theirs, reference.last_rows)):
        found |= {name: torch.full_like(slots, 99) for name in found}
        use(slots, starts, starts[1:], state["num_drafts"], state["wanted"], **found)
    same(ours, theirs)
    drawn = numbers(device, -1, 500, 200)
    drawn[3] = -1
    tokens = torch.zeros(SLOTS, MAX_LEN + 3, device=device, dtype=torch.int32)[:, :MAX_LEN]
    state["tokens"] = tokens
    expected = {name: values.clone() for name, values in state.items()}
    append(slots, drawn, **state)
    reference.append(slots, drawn, **expected)
    same(state, expected)
    assert (state["tokens"] > 0).any()


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    words = torch.zeros(4, device=device, dtype=torch.int32)
    with pytest.raises(ValueError, match="There are 4 requests; what has a number for each"):
        last_rows(words, words, *[words] * 6)
    with pytest.raises(ValueError, match="What concerns slots is int32"):
        append(words, words, words[:, None], words.long(), *[words] * 4)
