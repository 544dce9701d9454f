"""The choice among several engines: by what they know of a prompt, and by what they have to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.engine import balance as module
from slipway.engine.balance import AFFINITY, REQUEST_TOKENS, Balance
from slipway.engine.messages import AdapterRef, AddRequest
from slipway.engine.params import SamplingParams

BLOCK = 16
SYSTEM = list(range(1000, 1000 + 8 * BLOCK))


def asked(number: object, tokens: Sequence[int], **fields: object) -> AddRequest:
    return AddRequest(str(number), list(tokens), SamplingParams(1), **fields)  # type: ignore[arg-type]


def unlike(number: int, length: int = 2 * BLOCK) -> list[int]:
    """A prompt that begins as no other does."""
    return [number * 7919 + place for place in range(length)]


def test_requests_that_share_nothing_are_spread_evenly():
    balance = Balance(4)
    places = Counter(balance.choose(asked(n, unlike(n))) for n in range(40))
    assert places == dict.fromkeys(range(4), 10)


def test_one_request_after_another_uses_every_cache():
    balance = Balance(2)
    places = []
    for n in range(6):
        places.append(balance.choose(asked(n, unlike(n))))
        balance.ended(str(n))
    assert Counter(places) == {0: 3, 1: 3}


def test_a_request_goes_where_its_prefix_is():
    balance = Balance(2)
    first = balance.choose(asked("first", SYSTEM))
    balance.ended("first")
    balance.choose(asked("other", unlike(1)))
    balance.ended("other")
    for n in range(5):
        assert balance.choose(asked(n, [*SYSTEM, n])) == first
        balance.ended(str(n))


def test_the_answers_of_one_prompt_stay_together():
    balance = Balance(2)
    assert len({balance.choose(asked(n, SYSTEM)) for n in range(4)}) == 1


def test_a_prefix_that_all_ask_for_is_computed_once_by_each_engine_and_keeps_all_busy():
    balance, had, misses, running = Balance(2), set(), Counter(), Counter()
    for n in range(64):
        place = balance.choose(asked(n, [*SYSTEM, *unlike(n)]))
        misses[place] += place not in had
        had.add(place)
        running[place] += 1
    assert misses == {0: 1, 1: 1}
    assert max(running.values()) - min(running.values()) <= 1 + (AFFINITY + len(SYSTEM)) // REQUEST_TOKENS


def test_an_engine_that_is_overloaded_loses_its_prefix_to_another():
    balance = Balance(2)
    first = balance.choose(asked("first", SYSTEM))
    balance.ended("first")
    balance.heard(first, 100)
    assert balance.choose(asked("again", SYSTEM)) == 1 - first


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_salt": "another's"},
        {"adapter": AdapterRef(1, "a", "/a")},
        {"prompt_embeds": b"1234"},
    ],
)
def test_what_shares_no_blocks_is_no_reason_to_stay(fields):
    balance = Balance(2)
    first = balance.choose(asked("first", SYSTEM))
    assert balance.choose(asked("second", SYSTEM, **fields)) == 1 - first


def test_engines_without_prefixes_are_chosen_by_load_alone():
    balance = Balance(2, by_prefix=False)
    assert [balance.choose(asked(n, SYSTEM)) for n in range(4)] == [0, 1, 0, 1]
    assert balance.num_blocks == 0


def test_forgotten_prefixes_are_no_reason_to_stay():
    balance = Balance(2)
    first = balance.choose(asked("first", SYSTEM))
    balance.forget_prefixes()
    assert balance.choose(asked("second", SYSTEM)) == 1 - first


def test_requests_of_other_processes_count_once():
    balance = Balance(2)
    assert balance.choose(asked("own", unlike(0))) == 0
    balance.heard(0, 1)  # our own
    assert balance.load(0) == REQUEST_TOKENS + 2 * BLOCK
    balance.heard(0, 3)
    assert balance.load(0) == 3 * REQUEST_TOKENS + 2 * BLOCK
    balance.heard(0, 1)
    balance.ended("own")
    assert balance.load(0) == 0


def test_memory_is_bounded_and_the_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setattr(module, "MOST_BLOCKS", 10)
    balance = Balance(2)
    kept = balance.choose(asked("kept", SYSTEM[: 2 * BLOCK]))
    for n in range(20):
        balance.choose(asked(n, unlike(n)))
        balance.ended(str(n))
        assert balance.choose(asked("again", SYSTEM[: 2 * BLOCK])) == kept
        balance.ended("again")
        assert balance.num_blocks <= 10


def test_a_prompt_of_any_length_is_looked_at_so_far_and_no_further():
    balance = Balance(2)
    balance.choose(asked("long", range(100 * module.LONGEST_CHAIN * BLOCK)))
    assert balance.num_blocks == module.LONGEST_CHAIN


prompts = st.lists(st.integers(0, 1), max_size=4).map(
    lambda blocks: [b for b in blocks for _ in range(BLOCK)]
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), prompts),
        st.tuples(st.just("end"), st.integers(0, 99)),
        st.tuples(st.just("hear"), st.tuples(st.integers(0, 2), st.integers(0, 9))),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=60,
)


@given(events)
@settings(max_examples=200)
def test_the_chosen_engine_is_busier_than_any_other_by_its_prefix_at_most_and_all_loads_end(happened):
    balance, live, count = Balance(3), [], 0
    for what, value in happened:
        match what:
            case "ask":
                count += 1
                before = [balance.load(place) for place in range(3)]
                place = balance.choose(asked(count, value))
                assert balance.where(str(count)) == place
                assert before[place] - min(before) <= AFFINITY + len(value)
                live.append(str(count))
            case "end" if live:
                balance.ended(live.pop(value % len(live)))
            case "hear":
                balance.heard(*value)
            case "forget":
                balance.forget_prefixes()
    for name in live:
        assert name in balance
        balance.ended(name)
        balance.ended(name)  # told twice
    for place in range(3):
        balance.heard(place, 0)
    assert [balance.load(place) for place in range(3)] == [0, 0, 0]
