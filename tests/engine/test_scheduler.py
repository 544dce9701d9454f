"""The scheduler, the page pool and the core loop over a worker that knows its tokens."""

from __future__ import annotations

import random

import pytest
from engine_bench import Bench, bench, expected
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_gets_the_tokens_it_asked_for(overlap: bool):
    with bench(overlap=overlap) as b:
        b.add("a", 5, 7, seed=3)
        b.run()
        assert b.tokens("a") == expected(5, 7, 3)
        assert b.hub.deltas["a"][-1].finish_reason == "length"


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    with bench(token_budget=16) as b:
        b.add("a", 40, 1)
        b.run()
        assert [plan.num_new for plan in b.plans] == [[16], [16], [8]]


def test_running_requests_are_granted_before_waiting_ones():
    with bench(token_budget=16) as b:
        b.add("old", 4, 20)
        b.turn()
        b.add("new", [900 + i for i in range(40)], 1)
        b.turn()
        assert b.plans[-1].num_new == [1, 15]


def test_prompts_take_whole_steps_only_while_nobody_waits_for_the_next_token():
    with bench(token_budget=32, beside_decodes=8) as b:
        b.add("first", 40, 5)
        b.turn()
        b.turn()
        b.add("second", [7] * 20, 1)
        b.run()
        assert [plan.num_new for plan in b.plans] == [[32], [8], [1, 8], [1, 8], [1, 4], [1]]


def test_a_full_prefix_hit_still_computes_the_last_token():
    with bench() as b:
        b.add("first", 16, 4)
        b.run()
        b.add("again", 16, 4)
        b.run()
        assert b.tokens("again") == b.tokens("first")
        assert b.hub.deltas["again"][0].num_cached_tokens == 15
        assert sum(stats.prefix_queries for stats in b.hub.stats) == 32
        assert sum(stats.prefix_hits for stats in b.hub.stats) == 15


def test_salts_do_not_share_blocks():
    with bench() as b:
        b.add("first", 16, 1, cache_salt="a")
        b.run()
        b.add("other", 16, 1, cache_salt="b")
        b.run()
        assert b.hub.deltas["other"][0].num_cached_tokens == 0


def test_the_youngest_request_is_preempted_and_resumes_with_its_output():
    with bench(num_pages=8, block_size=4, token_budget=64) as b:
        b.add("old", [1] * 10, 14)
        b.add("young", [2] * 10, 14)
        b.run()
        assert b.tokens("old") == b.tokens("young") == expected(10, 14)
        assert b.hub.deltas["old"][-1].timing.num_preemptions == 0
        preempted = b.hub.deltas["young"][-1].timing.num_preemptions
        assert sum(stats.preemptions for stats in b.hub.stats) == preempted > 0


TWO_FOR_ONE = {"num_pages": 8, "block_size": 4, "token_budget": 64, "prefix_caching": False}
"""Two requests of 24 tokens where there is room for one."""


def add_two(b: Bench) -> None:
    b.add("old", [1] * 10, 14)
    b.add("young", [2] * 10, 14)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_swapped_request_resumes_without_computing_anything_twice(overlap: bool):
    with bench(**TWO_FOR_ONE, num_host_pages=6, overlap=overlap) as b:
        add_two(b)
        b.run()
        assert b.tokens("old") == b.tokens("young") == expected(10, 14)
        assert b.hub.deltas["young"][-1].timing.num_preemptions == 1
        assert b.num_computed == 2 * (10 + 13)
        (out,) = [plan.swap_out for plan in b.plans if plan.swap_out]
        (back,) = [plan.swap_in for plan in b.plans if plan.swap_in]
        assert [host for _, host in out] == [host for host, _ in back]


def test_a_swapped_request_computes_again_what_guesses_go_on_from():
    with bench(**TWO_FOR_ONE, num_host_pages=6, num_recomputed=3) as b:
        add_two(b)
        b.run()
        assert any(plan.swap_in for plan in b.plans)
        assert b.tokens("young") == expected(10, 14)
        assert b.num_computed == 2 * (10 + 13) + 3


def test_a_swapped_request_reads_nothing_again_that_has_left_its_window():
    with bench(
        windows=(8,), num_pages=6, block_size=4, token_budget=64, num_host_pages=2, num_recomputed=3
    ) as b:
        b.add("old", [1] * 4, 6)
        b.add("young", [2] * 20, 6)
        b.run()
        assert any(plan.swap_in for plan in b.plans)
        assert b.tokens("young") == expected(20, 6)
        assert b.num_computed == 4 + 5 + 20 + 5


def test_where_host_memory_is_full_a_preempted_request_is_computed_again():
    with bench(**TWO_FOR_ONE, num_host_pages=3) as b:
        add_two(b)
        b.run()
        assert b.tokens("young") == expected(10, 14)
        assert not any(plan.swap_out for plan in b.plans)
        assert b.num_computed > 2 * (10 + 13)


def test_an_abort_frees_what_host_memory_keeps():
    with bench(**TWO_FOR_ONE, num_host_pages=6) as b:
        add_two(b)
        while not b.scheduler.cache.swapped:
            b.turn()
        assert b.hub.stats[-1].num_swapped == 1
        assert b.hub.stats[-1].swap_usage == pytest.approx(4 / 6)
        b.abort("young")
        b.turn()
        assert b.scheduler.cache.host.num_free == 6
        assert b.hub.stats[-1].num_swapped == 0
        b.run()


def test_a_step_that_swaps_out_and_computes_nothing_is_carried_out():
    with bench(**TWO_FOR_ONE, num_host_pages=6, overlap=True) as b:
        b.add("old", [1] * 20, 1)  # holds its pages while its only token is under way
        b.add("young", [2] * 12, 14)
        b.run()
        assert any(plan.swap_out and not plan.slots for plan in b.plans)
        assert b.tokens("young") == expected(12, 14)
        assert b.num_computed == 20 + 12 + 13


def test_blocks_before_a_window_are_not_swapped():
    with bench(windows=(8,), num_pages=6, block_size=4, token_budget=64, num_host_pages=2) as b:
        b.add("old", [1] * 4, 6)
        b.add("young", [2] * 20, 6)
        b.run()
        assert [len(plan.swap_out) for plan in b.plans if plan.swap_out] == [2]
        assert b.tokens("young") == expected(20, 6)


def test_swapped_blocks_can_be_found_again_once_they_are_back():
    with bench(**(TWO_FOR_ONE | {"prefix_caching": True}), num_host_pages=6) as b:
        add_two(b)
        b.run()
        b.add("again", [2] * 10, 1)
        b.run()
        assert any(plan.swap_in for plan in b.plans)
        assert b.hub.deltas["again"][0].num_cached_tokens == 8


def test_with_the_priority_policy_the_lowest_number_runs_first():
    with bench(max_requests=1, by_priority=True) as b:
        b.add("late", 4, 2, priority=5)
        b.add("first", 4, 2, priority=-1)
        b.run()
        assert list(b.hub.deltas) == ["first", "late"]


def test_without_chunking_a_prompt_waits_until_it_fits_the_step():
    with bench(token_budget=16, chunked_prefill=False) as b:
        b.add("a", 10, 3)
        b.add("b", [800 + i for i in range(12)], 3)
        b.run()
        assert [plan.num_new for plan in b.plans][:2] == [[10], [1, 12]]


def test_a_short_prompt_overtakes_a_second_long_one():
    limits = {"token_budget": 16, "max_partial": 2, "max_long_partial": 1, "long_prompt": 8}
    with bench(**limits, num_pages=200) as b:
        b.add("long", [1] * 60, 1)
        b.add("long too", [2] * 60, 1)
        b.add("short", [3] * 4, 1)
        b.run()
        assert next(iter(b.hub.deltas)) == "short"


def test_a_sliding_group_returns_the_pages_that_leave_its_window():
    with bench(windows=(0, 8), num_pages=200, block_size=4) as b:
        b.add("a", 60, 30)
        for _ in range(20):
            b.turn()
        (request,) = b.scheduler.running
        full, sliding = request.tables
        assert all(page >= 0 for page in full)
        assert sum(page >= 0 for page in sliding) <= 4


def test_a_sliding_group_needs_only_its_window_for_a_prefix_hit():
    with bench(windows=(0, 8), num_pages=30, block_size=4) as b:
        b.add("a", 41, 1)
        b.run()
        b.add("again", 41, 1)
        b.run()
        assert b.hub.deltas["again"][0].num_cached_tokens == 40


def test_an_abort_in_any_state_frees_everything():
    with bench(max_requests=1) as b:
        b.add("running", 30, 50)
        b.add("waiting", 30, 50)
        b.turn()
        b.abort("waiting")
        b.turn()
        b.abort("running")
        b.run()
        b.scheduler.cache.check()
        assert "waiting" not in b.hub.deltas


requests = st.tuples(
    st.integers(1, 40),  # prompt
    st.integers(1, 30),  # max_tokens
    st.integers(0, 2),  # kind of prompt: equal prefixes meet
    st.integers(-2, 2),  # priority
    st.integers(0, 30),  # turn of arrival
    st.one_of(st.none(), st.integers(0, 40)),  # turn of abort
)


groups = st.lists(
    st.tuples(st.sampled_from([0, 0, 5, 8]), st.sampled_from([1, 2, 3, 4, 8])), min_size=1, max_size=3
)
"""Windows and tokens a page: sizes need not divide each other."""


@settings(max_examples=160)
@given(
    script=st.lists(requests, min_size=1, max_size=12),
    groups=groups,
    spare_pages=st.integers(0, 30),
    token_budget=st.sampled_from([1, 7, 16, 64]),
    overlap=st.booleans(),
    prefix_caching=st.booleans(),
    by_priority=st.booleans(),
    num_host_pages=st.sampled_from([0, 5, 100]),
)
def test_whatever_happens_every_request_gets_its_tokens_and_no_page_leaks(
    script: list[tuple[int, int, int, int, int, int | None]],
    groups: list[tuple[int, int]],
    spare_pages: int,
    token_budget: int,
    overlap: bool,
    prefix_caching: bool,
    by_priority: bool,
    num_host_pages: int,
):
    """Pages are as short as they can be: one request of 70 tokens fits, so preemption is the rule."""
    windows, sizes = zip(*groups, strict=True)
    least = sum(-(-70 // size) + 2 for size in sizes)
    with bench(
        num_pages=least + spare_pages,
        num_host_pages=num_host_pages,
        block_size=sizes,
        windows=windows,
        overlap=overlap,
        prefix_caching=prefix_caching,
        by_priority=by_priority,
        token_budget=token_budget,
        max_requests=4,
    ) as b:
        for turn in range(41):
            for i, (prompt, max_tokens, kind, priority, arrival, _) in enumerate(script):
                if arrival == turn:
                    tokens = [100 * kind + j for j in range(prompt)]
                    b.add(str(i), tokens, max_tokens, priority=priority, seed=i)
            for i, (*_, abort) in enumerate(script):
                if abort == turn:
                    b.abort(str(i))
            b.turn()
            assert sum(b.plans[-1].num_new if b.plans else []) <= token_budget
        b.run()
        b.scheduler.cache.check()
        for i, (prompt, max_tokens, *_, abort) in enumerate(script):
            if abort is None:
                assert b.tokens(str(i)) == expected(prompt, max_tokens, i)


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [10_000, 100_000])
@pytest.mark.parametrize("overlap", [False, True])
def test_any_number_of_steps_leaves_nothing_behind(overlap: bool, num_steps: int):
    rng = random.Random(7)
    with bench(num_pages=60, block_size=4, token_budget=32, overlap=overlap, num_host_pages=30) as b:
        open_requests: dict[str, tuple[int, int]] = {}
        count = 0
        while b.core.news.num_steps < num_steps:
            if len(open_requests) < 12 and rng.random() < 0.4:
                name, prompt, most = str(count), rng.randint(1, 60), rng.randint(1, 60)
                b.add(name, [rng.randint(0, 1)] * prompt, most, seed=count)
                open_requests[name] = (prompt, most)
                count += 1
            elif open_requests and rng.random() < 0.01:
                name = rng.choice(list(open_requests))
                b.abort(name)
                del open_requests[name]
            b.core.run_once()
            for name in [n for n, deltas in b.hub.deltas.items() if deltas[-1].finish_reason]:
                if name in open_requests:
                    assert b.tokens(name) == expected(*open_requests.pop(name), int(name))
                del b.hub.deltas[name]
        b.run()
        b.scheduler.cache.check()
