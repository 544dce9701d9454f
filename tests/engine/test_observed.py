"""What the engine tells of its work: tokens with the step that computed them, and times where asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from engine_bench import Bench, bench

from device_runs import SMALL
from local_engine import LocalEngine
from slipway.engine.messages import Work
from slipway.engine.params import SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start

LLAMA = "llama"


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


def works(engine: LocalEngine) -> list[Work | None]:
    name = engine.add(list(range(5, 45)), SamplingParams(6, temperature=0.0))
    engine.finish()
    return [delta.work for delta in engine.hub.deltas.pop(name)]


@pytest.mark.parametrize("overlap", [False, True])
def test_each_delta_tells_the_time_of_all_steps_before_it(
    tiny_models: Callable[[str], Path], overlap: bool
) -> None:
    fields = {"timed": True, "max_num_batched_tokens": 16, "overlap": overlap}
    with LocalEngine(tiny_models(LLAMA), **fields) as engine:
        begun = time.monotonic()
        told = works(engine)
        passed = time.monotonic() - begun
    assert len(told) == 6
    for earlier, later in pairwise([Work(0, 0, 0), *told]):
        assert earlier is not None
        assert later is not None
        assert later.scheduling > earlier.scheduling
        assert later.execution > earlier.execution
        assert earlier.forward < later.forward <= later.execution
    assert told[-1] is not None
    assert told[-1].execution <= passed  # steps that overlap are not counted twice


def test_nobody_asks_and_nothing_is_told(tiny_models: Callable[[str], Path]) -> None:
    with LocalEngine(tiny_models(LLAMA)) as engine:
        assert works(engine) == [None] * 6


def test_a_run_that_was_timed_replays(tiny_models: Callable[[str], Path], tmp_path: Path) -> None:
    record = tmp_path / "run.record"
    with LocalEngine(tiny_models(LLAMA), timed=True, record=str(record)) as engine:
        assert None not in works(engine)
    config, steps = read_record(record)
    assert replay(Start.of(config).worker, steps) is None


@pytest.mark.slow
def test_the_forward_pass_is_timed_on_a_device_too(tiny_models: Callable[[str], Path]) -> None:
    with LocalEngine(tiny_models(LLAMA), **(SMALL | {"device": "cuda", "timed": True})) as engine:
        name = engine.add([5, 6, 7], SamplingParams(2, temperature=0.0))
        engine.finish()
        told = [delta.work for delta in engine.hub.deltas[name]]
    assert len(told) == 2
    assert all(work is not None and 0 < work.forward < work.execution for work in told)


def test_a_request_that_is_not_counted_leaves_no_trace_in_metrics_and_takes_one_prefix_at_most():
    with bench(num_pages=8) as b:
        b.add("prompt", list(range(27)), 1)
        b.run()
        known = len(b.hub.stats)
        for number in range(20):
            b.add(str(number), [0], 1, counted=False)
            b.run()
            assert b.hub.deltas[str(number)][-1].finish_reason == "length"
            assert b.tokens(str(number)) == []
        news = list(b.hub.stats)[known:]
        assert [(one.prompt_tokens, one.generation_tokens, one.num_step_tokens) for one in news] == [
            (0, 0, [])
        ] * len(news)
        assert sum(one.prefix_queries for one in news) == 0
        b.add("again", list(range(27)), 1)
        b.run()
        assert b.hub.deltas["again"][-1].num_cached_tokens >= 20
