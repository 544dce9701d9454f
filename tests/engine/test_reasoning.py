"""Reasoning in front of a grammar: masks ahead of drafts are those that come when they are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slipway.engine.messages import ReasoningBounds
from slipway.engine.reasoning import ReasoningFirst

BEGIN, END = 1, 2
WORDS = 1


class Counting:
    """Allows the tokens 10, 11, 12 in this order."""

    def __init__(self) -> None:
        self.place = 0

    def advance(self, tokens: Sequence[int]) -> int | None:
        for count, token in enumerate(tokens, 1):
            assert token == 10 + self.place
            self.place += 1
            if self.place == 3:
                return count
        return None

    def forced(self) -> list[int]:
        return list(range(10 + self.place, 13))

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        rows = np.full((1 + len(drafts), WORDS), 0xFFFFFFFF, np.uint32)
        for number in range(len(rows)):
            if self.place + number > 2:
                break
            rows[number] = 1 << (10 + self.place + number)
            if number == len(drafts) or drafts[number] != 10 + self.place + number:
                break
        return rows


def matcher(inside: bool, budget: int, stops: tuple[int, ...] = ()) -> ReasoningFirst:
    return ReasoningFirst(ReasoningBounds(BEGIN, END, inside, budget, stops), Counting(), WORDS)


@given(st.booleans(), st.integers(-1, 4), st.sampled_from([(), (10,), (5,), (5, 10)]), st.data())
def test_what_is_allowed_ahead_is_allowed_then(
    inside: bool, budget: int, stops: tuple[int, ...], data: st.DataObject
) -> None:
    ahead, then = matcher(inside, budget, stops), matcher(inside, budget, stops)
    tokens: list[int] = []
    for _ in range(12):
        (row,) = then.masks(())
        allowed = [token for token in (BEGIN, END, 5, 10, 11, 12) if row[0] >> token & 1]
        assert allowed
        forced = then.forced()
        assert not forced or allowed == forced[:1]
        token = data.draw(st.sampled_from(allowed))
        tokens.append(token)
        if then.advance([token]) is not None:
            break
    rows = ahead.masks(tokens)
    again = matcher(inside, budget, stops)
    for place, token in enumerate(tokens):
        assert (again.masks(())[0] == rows[place]).all(), (tokens, place)
        again.advance([token])
    assert ahead.advance(tokens) == (len(tokens) if tokens[-3:] == [10, 11, 12] else None)


@pytest.mark.parametrize("tokens", [[10, 11, 12], [BEGIN, 5, END, 10, 11, 12], [BEGIN, END, 10, 11, 12]])
def test_an_output_begins_with_reasoning_or_with_the_answer(tokens: list[int]) -> None:
    assert matcher(False, -1).advance(tokens) == len(tokens)


def test_the_budget_ends_it() -> None:
    one = matcher(True, 2)
    assert one.forced() == []
    assert one.advance([5, 5]) is None
    assert one.forced() == [END]
    assert one.masks(())[0] == 1 << END
    assert one.advance([END, 10]) is None
    assert one.forced() == [11, 12]


def test_a_token_that_stops_it_is_the_first_of_the_grammar() -> None:
    one = matcher(True, 2, (10,))
    assert one.advance([5, 10]) is None
    assert one.masks(())[0] == 1 << 11, "neither the budget nor the end is left"
    assert one.advance([11, 12]) == 2


def test_a_token_that_stops_it_waits_for_the_end_where_the_grammar_does_not_begin_with_it() -> None:
    one = matcher(True, -1, (5,))
    assert one.masks(())[0] == 0xFFFFFFFF & ~(1 << 5)
    assert one.advance([6, END, 10, 11, 12]) == 5


def test_a_token_that_stops_it_ends_the_budget_where_the_answer_is_free() -> None:
    one = ReasoningFirst(ReasoningBounds(BEGIN, END, True, 2, (5,)), None, WORDS)
    assert one.advance([6, 5, 6, 6]) is None
    assert one.forced() == []
    assert (one.masks([6, 5]) == 0xFFFFFFFF).all()
