"""What the engine tells of its work: tokens with the step that computed them."""

from __future__ import annotations

import pytest
from engine_bench import Bench, bench


def counted(b: Bench) -> tuple[list[int], list[int]]:
    """Prompt tokens and generated ones, of each step that had some."""
    prompts = [stats.prompt_tokens for stats in b.hub.stats]
    return [count for count in prompts if count], [one.generation_tokens for one in b.hub.stats if one.step]


def test_tokens_are_told_with_the_step_that_computed_them():
    with bench(token_budget=16) as b:
        b.add("a", 40, 3)
        b.run()
        assert counted(b) == ([16, 16, 8], [0, 0, 1, 1, 1, 0])  # the last frame is that of the idle engine


@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_preemption_undoes_is_told_once(overlap: bool):
    with bench(num_pages=8, token_budget=4, prefix_caching=False, overlap=overlap) as b:
        b.add("old", [1] * 10, 14)
        b.add("young", [2] * 10, 14)
        b.run()
        assert b.hub.deltas["young"][-1].timing.num_preemptions > 0
        assert [sum(counts) for counts in counted(b)] == [20, 28]
        assert min(counted(b)[0]) > 0


def test_tokens_found_in_the_prefix_cache_count_as_prompt_tokens():
    with bench() as b:
        for name in ("first", "again"):
            b.add(name, 16, 1)
            b.run()
        assert b.hub.deltas["again"][0].num_cached_tokens == 15
        assert counted(b)[0] == [16, 16]


def test_what_is_computed_for_nobody_is_not_told():
    with bench(overlap=True) as b:
        b.add("a", 4, 50)
        while len(b.hub.deltas.get("a", ())) < 3:
            b.turn()
        b.abort("a")
        b.run()
        assert sum(counted(b)[1]) == len(b.tokens("a"))
