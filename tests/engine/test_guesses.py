"""Drafts are granted as far as they pay: by what rows cost, and by what a request's drafts have brought."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.engine.guesses import (
    FIRST_OFF,
    FIRST_PAUSE,
    LEAST_COST,
    LONGEST_OFF,
    LONGEST_PAUSE,
    MOST_COST,
    STAKE,
    Guesses,
    Guessing,
    StepTime,
)
from slipway.engine.messages import Speculated

LIMIT = 5
Chance = Callable[[], bool]


def spent(guesses: Guesses, tokens: int, cost: float, right: Chance, limit: int = LIMIT) -> tuple[float, int]:
    """Steps' time that so many tokens take, and the drafts of it that were verified."""
    time, known, verified = 0.0, 1, 0
    while known < tokens:
        drafts = min(limit, guesses.most(known, cost))
        accepted = next((number for number in range(drafts) if not right()), drafts)
        time += 1 + drafts * cost
        known += 1 + accepted
        verified += drafts
        if drafts:
            guesses.judge(drafts, accepted, cost, known)
    return time, verified


@pytest.mark.parametrize("cost", [LEAST_COST, 0.125, 0.3, 0.53, 0.95])
def test_drafts_in_vain_cost_a_stake_and_what_tries_cost(cost: float) -> None:
    for tokens in (128, 1024, 10_000):
        time, verified = spent(Guesses(), tokens, cost, lambda: False)
        tries = tokens / LONGEST_PAUSE + 5
        assert time - tokens <= STAKE + tries * cost
        assert verified > tokens / LONGEST_PAUSE - 1, "it goes on to try"


@pytest.mark.parametrize("cost", [0.125, 0.53, 0.95])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_request_is_hardly_slower_whatever_share_of_drafts_is_right(cost: float, share: float) -> None:
    rng = random.Random(1)
    time, _ = spent(Guesses(), 20_000, cost, lambda: rng.random() < share)
    assert time < 1.03 * 20_000


def test_drafts_that_are_right_are_verified_as_many_as_there_may_be() -> None:
    for cost in (0.125, 0.53):
        time, _ = spent(Guesses(), 1200, cost, lambda: True)
        assert time < 1.05 * 200 * (1 + LIMIT * cost)


def test_pauses_double_and_a_success_makes_them_short_again() -> None:
    guesses, known, pauses = Guesses(), 0, []
    for accepted in (0, 0, 0, 0, 0, 0, 0, 1, 0, 0):
        guesses.judge(1, accepted, 0.95, known)
        begun = known
        while not guesses.most(known, 0.95):
            known += 1
        pauses.append(known - begun)
    doubled = [FIRST_PAUSE << number for number in range(5)]
    assert pauses[:7] == [*doubled, LONGEST_PAUSE, LONGEST_PAUSE]
    assert pauses[7:] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]


def test_drafts_under_way_when_a_pause_begins_make_it_no_longer() -> None:
    """With steps launched ahead, those of two were granted before the first was judged."""
    guesses, known, pauses = Guesses(), 0, []
    for _ in range(3):
        for _ in range(2):
            guesses.judge(1, 0, 0.95, known := known + 1)
        begun = known
        while not guesses.most(known, 0.95):
            known += 1
        pauses.append(known - begun + 1)
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert guesses.most(known, 0.95) == 1, "it has lost its stake, and tries"


@pytest.mark.parametrize("row", [0.0, 0.02, 0.1, 0.5])
def test_what_a_draft_costs_is_learned_from_steps_of_other_rows(row: float) -> None:
    rng = random.Random(2)
    time = StepTime()
    for _ in range(400):
        rows = 4 + rng.choice((0, 0, 4, 20))
        time.add(rows, (1 + row * rows) * 0.01 * rng.uniform(0.9, 1.1))
    expected = max(row * 4 / (1 + row * 4), LEAST_COST)
    assert time.cost(4) == pytest.approx(expected, abs=0.05)


@given(
    steps=st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 1e4)), max_size=30),
    num_running=st.integers(0, 5000),
)
def test_whatever_steps_took_a_draft_has_a_cost_within_bounds(
    steps: list[tuple[int, float]], num_running: int
) -> None:
    time = StepTime()
    for rows, seconds in steps:
        time.add(rows, seconds)
        assert LEAST_COST <= time.cost(num_running) <= MOST_COST


def test_one_interrupted_step_tells_little() -> None:
    time = StepTime()
    for _ in range(100):
        time.add(1, 0.01)
    before = time.cost(1)
    time.add(2, 1.0)
    assert time.cost(1) < before + 0.15


def test_an_interrupted_step_among_the_first_tells_little() -> None:
    """It had twice the rows, so that they might explain what it took."""
    time = StepTime()
    time.add(10, 0.001)
    before = time.cost(10)
    time.add(20, 0.1)
    assert time.cost(10) < before + 0.1


def test_rows_that_cost_nothing_are_known_after_a_few_steps() -> None:
    time = StepTime()
    time.add(10, 0.001)
    costs = []
    for _ in range(8):
        time.add(20, 0.001)
        costs.append(time.cost(10))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.1


def test_more_company_makes_a_draft_dearer() -> None:
    time = StepTime()
    assert time.cost(1) < time.cost(8) < time.cost(64)
    time.add(1, 0.01)
    assert time.cost(1) < time.cost(8) < time.cost(64) < 1


@pytest.mark.parametrize("draft", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("num_running", [1, 4])
def test_the_proposers_own_seconds_are_part_of_what_a_draft_costs(draft: float, num_running: int) -> None:
    """In company as many drafts as requests share a model's step, and each of them waits for it."""
    guessing = Guessing()
    rng = random.Random(3)
    for _ in range(400):
        drafts = num_running * rng.choice((0, 1, 4))
        proposing = drafts * draft / num_running
        guessing.took(num_running + drafts, 1 + proposing, drafts, proposing)
    guessing.begin(num_running)
    assert guessing._cost == pytest.approx(LEAST_COST + draft, abs=0.05)


def test_a_proposer_that_never_pays_is_asked_no_more_than_tries_cost() -> None:
    """It takes 0.4 of a step for each draft, of which three of ten are accepted, whatever rows cost."""
    rng = random.Random(4)
    time, _ = spent(Guesses(), 20_000, LEAST_COST + 0.4, lambda: rng.random() < 0.3)
    assert time < 1.03 * 20_000


@dataclass(eq=False)
class Running:
    """What is judged of a request."""

    tokens: list[int] = field(default_factory=list)
    guesses: Guesses | None = None
    drafts: int = 0
    """In its slot."""


def rate(num_running: int, one_pass: float, right: Chance) -> float:
    """Tokens a step's time of each of so many requests, of 400 tokens, whose rows cost nothing.

    one_pass  steps' time that a model takes to guess a draft of all who want one
    """
    guessing, time, drawn = Guessing(), 0.0, 0
    requests: list[Any] = [Running([0] * (1 + 400 * place // num_running)) for place in range(num_running)]
    for _ in range(3000):
        guessing.begin(num_running)
        wanted = [min(guessing.most(request), 4) for request in requests]
        verified = [min(most, one.drafts) for most, one in zip(wanted, requests, strict=True)]
        proposing = one_pass * max(wanted)
        time += 1 + proposing
        for place, (request, drafts) in enumerate(zip(requests, verified, strict=True)):
            new = 1 + next((number for number in range(drafts) if not right()), drafts)
            drawn += new
            request.tokens += [0] * new
            request.drafts = wanted[place]
            if drafts:
                guessing.judge(request, drafts, new)
            if len(request.tokens) > 400:
                requests[place] = Running()
        guessing.took(num_running + sum(verified), 1 + proposing, sum(verified), proposing)
    return drawn / num_running / time


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
@pytest.mark.parametrize(
    ("num_running", "one_pass"), [(1, 0.5), (1, 1.5), (4, 0.5), (16, 0.2), (16, 1.5), (32, 0.1)]
)
def test_a_model_that_does_not_pay_costs_little_in_any_company(
    num_running: int, one_pass: float, share: float
) -> None:
    """All wait for it where one tries, who can win a token by a draft."""
    rng = random.Random(5)
    assert rate(num_running, one_pass, lambda: rng.random() < share) > 0.97


def test_a_model_that_pays_is_asked_in_company() -> None:
    rng = random.Random(6)
    assert rate(16, 0.04, lambda: rng.random() < 0.8) > 2


def steps_off(guessing: Guessing, requests: list[Any]) -> int:
    """Steps until all may have drafts; before that nobody may."""
    for step in range(1, LONGEST_OFF + 1):
        guessing.begin(len(requests))
        granted = [guessing.most(one) > 0 for one in requests]
        if all(granted):
            return step
        assert not any(granted)
        guessing.took(len(requests), 1.0, 0, 0.0)
    raise AssertionError("they never try again")


def test_what_cost_more_than_it_could_bring_is_tried_again_by_all() -> None:
    guessing, requests = Guessing(), [Running() for _ in range(16)]
    off = []
    for _ in range(3):
        guessing.took(20, 3.0, 4, 2.0)
        off.append(steps_off(guessing, requests))
        guessing.begin(16)  # what it granted is under way
    assert off == [FIRST_OFF, LONGEST_OFF, LONGEST_OFF]
    guessing.took(32, 1.4, 16, 0.4)
    guessing.begin(16)
    assert 0.4 < guessing._cost < 1, "what they took together"


def test_a_first_guess_that_was_interrupted_stops_drafts_for_a_few_steps() -> None:
    guessing, requests = Guessing(), [Running() for _ in range(10)]
    guessing.took(20, 1.0, 10, 0.99)
    assert steps_off(guessing, requests) == FIRST_OFF
    guessing.begin(10)
    for _ in range(100):
        guessing.took(20, 0.01, 10, 0.00001)
        assert steps_off(guessing, requests) == 1


def test_one_interrupted_guess_tells_little() -> None:
    guessing = Guessing()
    for _ in range(100):
        guessing.took(5, 1.2, 4, 0.2)
    guessing.begin(1)
    before = guessing._cost
    guessing.took(5, 9.0, 4, 8.0)
    guessing.begin(1)
    assert before < guessing._cost < before + 0.02


def test_what_was_verified_is_counted_until_it_is_asked_for() -> None:
    guessing = Guessing()
    assert guessing.counts() is None
    guessing.judge(Running(), 3, drawn=4)
    guessing.judge(Running(), 3, drawn=1)
    assert guessing.counts() == Speculated(drafts=2, proposed=6, accepted=3, emitted=5)
    assert guessing.counts() is None
