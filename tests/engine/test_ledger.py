"""What the engine owes each request: its turn, its pages, its failures and nobody else's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from engine_bench import Bench, bench, expected
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.engine.kv_cache import block_hash
from slipway.engine.page_pool import PagePool
from slipway.engine.plan import Masks, StepOutput, StepPlan

UNCHUNKED = {"token_budget": 200, "chunked_prefill": False, "num_pages": 400}


@pytest.mark.parametrize("limits", [{"long_prompt": 10}, {"long_prompt": 10, "max_partial": 2}])
def test_without_chunking_no_prompt_is_cut_and_nobody_waits_for_ever(limits: dict[str, int]):
    with bench(**UNCHUNKED, **limits) as b:
        b.add("long", 100, 3)
        b.add("behind", [900] * 5, 3)
        b.run(50)
        assert b.tokens("long") == expected(100, 3)
        assert max(max(plan.num_new) for plan in b.plans if plan.slots) == 100


def test_a_long_prompt_of_high_priority_stops_no_stream():
    with bench(token_budget=16, by_priority=True, num_pages=400) as b:
        b.add("stream", 4, 40)
        b.turn()
        b.add("long", [900 + i for i in range(400)], 1, priority=-1)
        before = len(b.plans)
        while "long" not in b.hub.deltas:
            b.turn()
        assert all(1 in plan.num_new for plan in b.plans[before:-1])
        assert len(b.plans) - before < 30


def test_decodes_leave_the_oldest_prompt_a_block_of_the_step():
    with bench(token_budget=8, block_size=4, num_pages=400, max_requests=12, max_partial=12) as b:
        for i in range(10):
            b.add(str(i), [i] * 2, 60)
        while len(b.scheduler.running) < 10:
            b.turn()
        b.add("prompt", [900] * 40, 1)
        for _ in range(14):
            b.turn()
        assert b.tokens("prompt") == expected(40, 1)


def test_requests_that_a_step_has_no_room_for_take_turns():
    with bench(token_budget=3, num_pages=400, max_requests=8, max_partial=8) as b:
        for i in range(8):
            b.add(str(i), [i], 30)
        while len(b.scheduler.running) < 8:
            b.turn()
        before = {str(i): len(b.tokens(str(i))) for i in range(8)}
        for _ in range(24):
            b.turn()
        gained = [len(b.tokens(name)) - had for name, had in before.items()]
        assert sum(gained) == 24 * 3
        assert max(gained) - min(gained) <= 1


def test_the_oldest_advances_in_every_step_whatever_the_others_are_granted_first():
    with bench(num_pages=13, block_size=4, token_budget=8, by_priority=True) as b:
        b.add("young", [2] * 8, 30)
        for _ in range(12):
            b.turn()
        b.add("old", [1] * 30, 4, priority=-1)
        while "old" not in b.hub.deltas:
            computed = {request.id: request.granted for request in b.scheduler.running}
            b.turn()
            for request in b.scheduler.running:
                if request.id == "old" and "old" in computed:
                    assert request.granted > computed["old"]
        b.run()
        assert b.tokens("young") == expected(8, 30)


class NotANumber(Bench):
    """Its worker fails the requests of one seed."""

    def step(self, plan: StepPlan, masks: Masks | None = None) -> StepOutput:
        output = super().step(plan, masks)
        wrong = [index for index, slot in enumerate(plan.slots) if self.worker.seed[slot] == 666]
        failed = [index for index in wrong if output.tokens[index]]
        for index in failed:
            output.tokens[index] = []
        return StepOutput(output.tokens, failed)


def test_what_a_request_with_nan_logits_computed_is_not_found_again():
    b = NotANumber(num_pages=64, token_budget=16)
    b.add("broken", 40, 4, seed=666)
    b.run()
    assert b.hub.deltas["broken"][-1].finish_reason == "error"
    b.add("again", 40, 4)
    b.run()
    assert b.hub.deltas["again"][0].num_cached_tokens == 0
    assert b.tokens("again") == expected(40, 4)


def test_siblings_compute_their_prompt_once():
    with bench(token_budget=300, block_size=16, num_pages=400, max_partial=8) as b:
        for i in range(8):
            b.add(str(i), 257, 2, seed=i)
        b.run()
        assert sum(max(0, sum(plan.num_new) - len(plan.num_new)) for plan in b.plans) == 256
        assert [b.tokens(str(i)) for i in range(8)] == [expected(257, 2, i) for i in range(8)]


def test_what_waits_for_a_sibling_is_counted_and_overtaken():
    with bench(token_budget=16, block_size=4, num_pages=400, max_partial=8) as b:
        b.add("first", 14, 4)
        b.add("sibling", 14, 4)
        b.add("other", [900], 4)
        b.turn()
        assert b.hub.stats[-1].num_deferred == 1
        assert "other" in b.hub.deltas
        b.run()
        assert b.hub.deltas["sibling"][0].num_cached_tokens == 12


def test_a_sibling_of_a_request_that_is_aborted_computes_the_prompt_itself():
    with bench(token_budget=8, block_size=4, num_pages=400) as b:
        b.add("first", 30, 4)
        b.add("sibling", 30, 4)
        b.turn()
        b.abort("first")
        b.run()
        assert b.tokens("sibling") == expected(30, 4)


def test_small_requests_overtake_one_that_waits_for_pages_but_not_for_ever():
    with bench(num_pages=20, block_size=4, token_budget=64, prefix_caching=False) as b:
        b.add("holder", [1] * 24, 40)
        b.turn()
        b.add("large", [2] * 60, 2)
        small = 0
        while "large" not in b.hub.deltas:
            b.add(f"small {small}", [3], 8)  # there is always one that holds pages
            small += 1
            b.turn()
        assert 0 < sum(name.startswith("small") for name in b.hub.deltas) < small - 10
        b.run()
        assert b.tokens("large") == expected(60, 2)


def counting(pool: PagePool) -> list[object]:
    asked: list[object] = []
    find = pool.find
    pool.find = lambda key: asked.append(key) or find(key)  # type: ignore[method-assign,func-returns-value]
    return asked


@pytest.mark.parametrize("windows", [(0,), (0, 32)])
def test_a_prompt_that_waits_is_looked_up_once_and_in_one_pass(windows: tuple[int, ...]):
    """It was quadratic, and repeated in every step: 100 ms a step for a prompt of 128 thousand tokens."""
    blocks, size = 300, 4
    tokens = blocks * size
    pages = (
        3 * blocks + 60 if windows == (0,) else 3 * blocks
    )  # room for one request of three times the length
    with bench(windows=windows, num_pages=pages, block_size=size, token_budget=2 * tokens) as b:
        for other in (5000, 0):
            b.add(f"from {other}", [*range(other, other + tokens)], 1)
            b.run()
        b.add("holder", [900] * tokens, 100)
        b.turn()
        b.add("again", [*range(tokens), *range(9000, 9000 + 2 * tokens)], 1)
        asked = counting(b.scheduler.cache.pool)
        for _ in range(40):
            b.turn()
        assert b.scheduler.waiting
        assert len(asked) <= (blocks + 50) * len(windows)


@pytest.mark.parametrize(("rewrites", "found"), [(True, 15), (False, 12)])
def test_a_full_hit_never_writes_into_a_shared_page_where_bits_may_differ(rewrites: bool, found: int):
    with bench(rewrites_blocks=rewrites) as b:
        b.add("first", 16, 4)
        b.run()
        b.add("again", 16, 4)
        b.run()
        assert b.tokens("again") == b.tokens("first")
        assert b.hub.deltas["again"][0].num_cached_tokens == found


def test_an_idle_engine_counts_the_pages_of_all_who_hold_some():
    with bench() as b:
        cache = b.scheduler.cache
        cache.holders["a transfer"] = [cache.pool.allocate(3)]
        b.add("a", 5, 2)
        b.run()
        cache.check()
        cache.pool.allocate(1)  # a page that nobody owns
        b.add("b", 5, 2)
        with pytest.raises(RuntimeError, match="page"):
            b.run()


def test_keys_of_the_default_hash_are_secret_and_shared_by_those_who_share_the_secret():
    one, other = block_hash("builtin"), block_hash("builtin")
    assert one(b"", b"tokens") != other(b"", b"tokens")
    assert block_hash("builtin", b"ours")(b"", b"tokens") == block_hash("builtin", b"ours")(b"", b"tokens")


class Broken:
    """Fails for one request, at one place."""

    def __init__(self, b: Bench, place: str) -> None:
        owner: Any = {"receive": b.scheduler, "plan": b.scheduler.cache, "answer": b.scheduler}[place]
        name = {"receive": "add", "plan": "extend", "answer": "commit"}[place]
        whole = getattr(owner, name)

        def fail(subject: Any, *rest: Any) -> Any:
            if getattr(subject, "request", subject).id == "broken":
                raise ZeroDivisionError("here")
            return whole(subject, *rest)

        setattr(owner, name, fail)


@pytest.mark.parametrize("place", ["receive", "plan", "answer"])
def test_an_exception_ends_the_request_that_it_is_about_and_no_other(place: str):
    with bench() as b:
        b.add("before", 9, 6)
        b.turn()
        Broken(b, place)
        b.add("broken", [700] * 9, 6)
        b.add("after", [800] * 9, 6)
        b.run()
        (end,) = b.hub.deltas["broken"]
        assert (end.finish_reason, end.error) == ("error", "ZeroDivisionError: here")
        assert b.tokens("before") == b.tokens("after") == expected(9, 6)
        b.scheduler.cache.check()


@settings(max_examples=60)
@given(
    script=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 15), st.booleans()),
        min_size=1,
        max_size=10,
    ),
    num_drafts=st.integers(1, 5),
    lookahead=st.integers(0, 5),
    groups=st.sampled_from([((0, 1),), ((0, 4),), ((0, 4), (8, 4)), ((0, 2), (8, 4)), ((8, 2), (0, 3))]),
    overlap=st.booleans(),
    num_host_pages=st.sampled_from([0, 40]),
    spare_pages=st.integers(0, 20),
)
def test_drafts_change_no_token_and_never_preempt(
    script: list[tuple[int, int, int, bool]],
    num_drafts: int,
    lookahead: int,
    groups: tuple[tuple[int, int], ...],
    overlap: bool,
    num_host_pages: int,
    spare_pages: int,
):
    """Over a worker that rejects some of them; pages and steps are short.

    A model guesses no more than its slots have pages for.
    """
    windows, sizes = zip(*groups, strict=True)
    least = sum(math.ceil(80 / size) + 2 for size in sizes)
    with bench(
        num_pages=least + spare_pages,
        num_host_pages=num_host_pages,
        block_size=sizes,
        windows=windows,
        overlap=overlap,
        num_drafts=num_drafts,
        lookahead=lookahead,
        token_budget=24,
        max_requests=4,
    ) as b:
        for turn in range(16):
            for i, (prompt, max_tokens, arrival, abort) in enumerate(script):
                if arrival == turn:
                    b.add(str(i), [100 * (i % 2) + j for j in range(prompt)], max_tokens, seed=i)
                if abort and arrival + 4 == turn:
                    b.abort(str(i))
            b.turn()
        b.run()
        b.scheduler.cache.check()
        for i, (prompt, max_tokens, _, abort) in enumerate(script):
            if not abort:
                assert b.tokens(str(i)) == expected(prompt, max_tokens, i)
        for plan in b.plans:
            assert sum(plan.num_new) <= 24
            assert not (plan.swap_out and any(plan.num_drafts))
        for ahead, free in _ahead(b.plans, sizes):
            assert ahead <= min(lookahead, free)
        assert lookahead or not any(plan.ahead for plan in b.plans)


def _ahead(plans: list[StepPlan], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of every row of every plan what may be guessed behind it, and the positions that its pages reach."""
    blocks = dict[tuple[int, int], int]()
    for plan in plans:
        for start in plan.starts:
            blocks |= {(group, start.slot): 0 for group in range(len(sizes))}
        for grant in plan.pages:
            blocks[grant.group, grant.slot] = grant.start + len(grant.pages)
        for ahead, slot, length in zip(
            plan.ahead, plan.slots, plan.lengths, strict=False
        ):  # or there is none
            yield ahead, min(blocks[group, slot] * size for group, size in enumerate(sizes)) - length


@pytest.mark.parametrize("overlap", [False, True])
def test_a_thousand_drafts_are_accepted_and_a_thousand_rejected(overlap: bool):
    with bench(num_pages=400, num_drafts=4, token_budget=64, overlap=overlap) as b:
        for i in range(8):
            b.add(str(i), [i] * 5, 400, seed=i)
        b.run()
        assert b.worker.num_accepted > 1000
        assert b.worker.num_rejected > 1000
        assert [b.tokens(str(i)) for i in range(8)] == [expected(5, 400, i) for i in range(8)]
        assert b.core.news.num_steps < 400


def first_after(b: Bench, name: str) -> int:
    """Steps until the first token of this request."""
    before = len(b.plans)
    while not b.hub.deltas.get(name):
        b.turn()
    return len(b.plans) - before


def test_a_chunk_of_a_long_prompt_leaves_the_rest_of_the_step_to_others():
    with bench(num_pages=4000, token_budget=256, long_prompt=32, max_requests=16) as b:
        b.add("long", [1] * 1000, 4)
        b.add("long too", [2] * 1000, 4)
        b.turn()
        b.add("short", [3] * 8, 4)
        assert first_after(b, "short") == 1
        assert [plan.num_new for plan in b.plans] == [[32, 32], [32, 32, 8]]


@pytest.mark.parametrize("windows", [(0,), (0, 24)])
def test_what_admitted_prompts_still_need_is_given_to_nobody_else(windows: tuple[int, ...]):
    limits = {"long_prompt": 16, "max_partial": 4, "max_long_partial": 4}
    with bench(num_pages=100, block_size=4, token_budget=64, windows=windows, **limits) as b:
        for i in range(4):
            b.add(str(i), [i] * 160, 2)
        b.run()
        assert sum(stats.preemptions for stats in b.hub.stats) == 0
        assert b.num_computed == 4 * (160 + 1)


@pytest.mark.parametrize("num_sharers", [8, 100])
def test_those_who_wait_for_a_prefix_hold_up_nobody_behind_them(num_sharers: int):
    document = list(range(800))
    limits = {"long_prompt": 32, "max_partial": 4, "max_long_partial": 1}
    with bench(num_pages=8000, token_budget=64, max_requests=64, **limits) as b:
        b.add("first", [*document, 1], 4)
        b.turn()
        for i in range(num_sharers):
            b.add(f"sharer{i}", [*document, i + 2], 4)
        b.add("other", [900] * 8, 4)
        assert first_after(b, "other") == 1
        assert b.num_computed == 32 + 32 + 8  # the sharers wait: nothing is computed twice


@pytest.mark.parametrize("limits", [{}, {"long_prompt": 32, "max_partial": 2}])
def test_an_urgent_request_passes_prompts_that_are_half_computed(limits: dict[str, int]):
    with bench(token_budget=64, by_priority=True, num_pages=4000, **limits) as b:
        b.add("batch", [1] * 1000, 4, priority=5)
        b.add("batch too", [2] * 1000, 4, priority=5)
        b.turn()
        b.add("urgent", [3] * 30, 4, priority=-1)
        assert first_after(b, "urgent") == 1
        assert 30 in b.plans[-1].num_new
        b.run()
        assert b.tokens("batch") == expected(1000, 4)


def test_urgent_requests_take_no_pages_that_a_prompt_under_way_needs():
    with bench(token_budget=64, by_priority=True, num_pages=60, block_size=4) as b:
        b.add("batch", [1] * 200, 2, priority=5)
        b.turn()
        b.add("urgent", [3] * 60, 2, priority=-1)
        b.run()
        assert sum(stats.preemptions for stats in b.hub.stats) == 0
        assert b.tokens("urgent") == expected(60, 2)
