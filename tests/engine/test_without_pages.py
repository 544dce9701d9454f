"""The scheduler over a model that keeps nothing: no group of layers, no page."""

from __future__ import annotations

from engine_bench import bench


def test_prompts_are_computed_whole_and_nothing_is_kept_of_them() -> None:
    with bench(windows=(), num_pages=0, token_budget=40, chunked_prefill=False) as b:
        for name, length in (("a", 30), ("b", 20), ("c", 5), ("again", 30)):
            b.add(name, length, 1)
        b.run()
        assert [plan.num_new for plan in b.plans] == [[30], [20, 5], [30]]
        assert not any(plan.pages for plan in b.plans)
        assert b.hub.deltas["again"][0].num_cached_tokens == 0
        b.scheduler.cache.count()


def test_a_request_that_ends_early_leaves_nothing_behind() -> None:
    with bench(windows=(), num_pages=0, token_budget=40, chunked_prefill=False) as b:
        b.add("a", 30, 1)
        b.add("b", 30, 1)
        b.turn()
        b.abort("b")
        b.run()
        assert [plan.num_new for plan in b.plans] == [[30]]
        assert not b.scheduler.cache.holders
