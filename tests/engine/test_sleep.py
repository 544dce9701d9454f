"""An engine that sleeps gives its memory back, and wakes as it was."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local_engine import LocalEngine, Output
from slipway.engine.messages import Ready
from slipway.engine.params import SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.sleeper import Asleep, Sleeper
from slipway.engine.start import Start
from slipway.exits import OUT_OF_MEMORY, Exit

Models = Callable[[str], Path]
Request = tuple[list[int], SamplingParams]

BASE: dict[str, object] = {
    "max_model_len": 256,
    "max_num_seqs": 4,
    "num_blocks": 64,
    "enable_prefix_caching": True,
}
WORK: list[Request] = [
    (list(range(20, 70)), SamplingParams(12, temperature=0.0, num_logprobs=3)),
    (list(range(20, 60)), SamplingParams(12, temperature=0.9, top_p=0.8, seed=7, num_logprobs=3)),
    (list(range(90, 160)), SamplingParams(9, temperature=0.7, seed=3, frequency_penalty=0.5)),
]
BOTH = ("weights", "kv_cache")


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def told(engine: LocalEngine) -> tuple[str, ...]:
    """What clients know to be asleep."""
    return engine.hub.told.asleep if isinstance(engine.hub.told, Ready) else ()


def same(found: list[Output], expected: list[Output]) -> None:
    assert [(one.tokens, one.finish_reason, one.logprobs) for one in found] == [
        (one.tokens, one.finish_reason, one.logprobs) for one in expected
    ]


@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"dtype": "float32"}, id="float32"),
        pytest.param({"dtype": "bfloat16", "quantization": "int4"}, id="int4"),
        pytest.param({"dtype": "bfloat16", "load_format": "dummy"}, id="random-weights"),
        pytest.param(
            {"dtype": "float32", "model_impl": "transformers"}, id="fallback", marks=pytest.mark.torch
        ),
        pytest.param(
            {"dtype": "bfloat16", "kv_cache_dtype": "fp8", "calculate_kv_scales": True}, id="found-scales"
        ),
        pytest.param({"dtype": "bfloat16", "num_drafts": 3, "prompt_lookup_min": 1}, id="drafts"),
        pytest.param({"dtype": "float32", "overlap": True}, id="overlap"),
    ],
)
def test_it_wakes_to_the_same_answers(tiny_models: Models, settings: dict[str, object], level: str) -> None:
    with LocalEngine(tiny_models("llama"), **BASE | settings) as engine:
        engine.run(WORK)  # scales are found
        assert engine.call("reset_prefix_cache") == "ok"
        before = engine.run(WORK)
        for _ in range(2):
            assert engine.call("sleep", level) == "ok"
            assert engine.call("wake_up", *BOTH) == "ok"
            after = engine.run(WORK)
            same(after, before)
            assert [one.num_cached_tokens for one in after] == [one.num_cached_tokens for one in before]


@pytest.mark.slow
def test_level_1_gives_back_pages_and_level_2_weights_too(demo_model: Path) -> None:
    with LocalEngine(demo_model, max_model_len=2048) as engine:
        loaded = resident()
        before = engine.run([(list(range(100, 1100)), SamplingParams(4, temperature=0.0))])
        while engine.worker.idle():
            pass
        pages = resident() - loaded
        assert pages > 128 << 20  # what is touched ahead; with huge pages of the system it is more
        weights = engine.start.plan.checkpoint.total_bytes
        assert engine.call("sleep", "1") == "ok"
        assert resident() < loaded + 0.1 * pages
        assert engine.call("sleep", "2") == "ok"  # deeper
        assert resident() < loaded + 0.1 * pages - 0.8 * weights
        engine.core.run_once()  # with nothing to do: pages are touched ahead no more
        assert resident() < loaded + 0.1 * pages - 0.8 * weights
        assert engine.call("wake_up", *BOTH) == "ok"
        same(engine.run([(list(range(100, 1100)), SamplingParams(4, temperature=0.0))]), before)


@pytest.mark.slow
def test_a_hundred_nights_leak_nothing(tiny_models: Models) -> None:
    with LocalEngine(tiny_models("llama"), **BASE, dtype="float32") as engine:
        before = engine.run(WORK)

        def nights(count: int) -> int:
            for night in range(count):
                assert engine.call("sleep", "12"[night % 2]) == "ok"
                assert engine.call("wake_up", *BOTH) == "ok"
                same(engine.run(WORK), before)
            gc.collect()
            return resident()

        threads = len(os.listdir("/proc/self/task"))
        files = len(os.listdir("/proc/self/fd"))
        settled = nights(10)
        assert nights(90) < settled + (4 << 20)
        assert len(os.listdir("/proc/self/task")) <= threads
        assert len(os.listdir("/proc/self/fd")) <= files


def test_parts_wake_one_by_one_and_as_often_as_one_likes(tiny_models: Models) -> None:
    with LocalEngine(tiny_models("llama"), **BASE, dtype="float32") as engine:
        before = engine.run(WORK)
        assert engine.call("wake_up", *BOTH) == "ok"  # it is awake
        assert engine.call("sleep", "2") == engine.call("sleep", "2") == engine.call("sleep", "1") == "ok"
        assert told(engine) == BOTH
        assert engine.call("wake_up", "kv_cache") == "ok"
        assert told(engine) == ("weights",)
        assert engine.call("wake_up", "kv_cache") == "ok"
        assert told(engine) == ("weights",)
        assert engine.call("sleep", "1") == "ok"  # from half awake; what was dropped stays so
        assert told(engine) == BOTH
        assert engine.call("wake_up", "weights") == engine.call("wake_up", "kv_cache") == "ok"
        assert told(engine) == ()
        same(engine.run(WORK), before)


def test_while_a_request_is_live_it_does_not_fall_asleep(tiny_models: Models) -> None:
    with LocalEngine(tiny_models("llama"), **BASE, dtype="float32") as engine:
        name = engine.add(*WORK[0])
        engine.core.run_once()
        assert engine.call("sleep", "1") == (
            "1 request is live: the engine falls asleep when none is. Wait for them to end, or abort them."
        )
        assert told(engine) == ()
        engine.finish()
        assert engine.output(name).finish_reason == "length"
        assert engine.call("sleep", "1") == "ok"


@pytest.mark.parametrize("overlap", [False, True])
def test_what_was_aborted_holds_up_no_sleep(tiny_models: Models, overlap: bool) -> None:
    with LocalEngine(tiny_models("llama"), **BASE, dtype="float32", overlap=overlap) as engine:
        before = engine.run(WORK)
        name = engine.add(*WORK[0])
        engine.core.run_once()
        engine.core.run_once()
        engine.abort(name)
        assert engine.call("sleep", "2") == "ok"
        assert engine.call("wake_up", *BOTH) == "ok"
        same(engine.run(WORK), before)


def test_a_request_that_comes_while_it_sleeps_is_told_so_and_disturbs_nothing(tiny_models: Models) -> None:
    with LocalEngine(tiny_models("llama"), **BASE, dtype="float32") as engine:
        before = engine.run(WORK)
        assert engine.call("sleep", "2") == "ok"
        name = engine.add(*WORK[0])
        engine.finish()
        (delta,) = engine.hub.deltas.pop(name)
        assert (delta.finish_reason, delta.error, delta.unfit) == ("error", "the engine sleeps", False)
        assert engine.call("reset_prefix_cache") == engine.call("check") == "ok"
        assert engine.call("wake_up", *BOTH) == "ok"
        same(engine.run(WORK), before)


def test_weights_that_have_gone_are_named_and_it_sleeps_on_until_they_are_back(
    tiny_models: Models, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_models("llama"), tmp_path / "model"))
    with LocalEngine(model, **BASE, dtype="float32") as engine:
        before = engine.run(WORK)
        assert engine.call("sleep", "2") == "ok"
        model.rename(tmp_path / "elsewhere")
        answer = engine.call("wake_up", *BOTH)
        assert answer.startswith(f"failed: wake up, and sleeps on: There is no folder {model}.")
        assert told(engine) == BOTH
        (tmp_path / "elsewhere").rename(model)
        assert engine.call("wake_up", *BOTH) == "ok"
        same(engine.run(WORK), before)


def test_what_neither_sleeps_nor_wakes_counts_as_asleep_until_it_wakes() -> None:
    class Torn:
        wakes = False

        def sleep(self, *, keep_weights: bool) -> None:
            raise Exit(OUT_OF_MEMORY, "there is no room")

        def wake(self, part: str) -> None:
            if not self.wakes:
                raise OSError("the disk is gone")

    worker: Any = Torn()
    told: list[tuple[str, ...]] = []
    sleeper = Sleeper(worker, told.append, warm_up=False)
    answer = sleeper.sleep(1)
    assert answer.startswith("failed: fall asleep: there is no room ")
    assert answer.endswith("sleeps on, until a call wakes it: the disk is gone")
    with pytest.raises(Asleep):
        sleeper.check()
    worker.wakes = True
    assert sleeper.wake(BOTH) == "ok"
    assert told == [BOTH, ("kv_cache",), ()]


def test_a_run_that_slept_replays(tiny_models: Models, tmp_path: Path) -> None:
    path = tmp_path / "record"
    with LocalEngine(tiny_models("llama"), **BASE, dtype="float32", record=str(path)) as engine:
        engine.run(WORK)
        for level in "12":
            assert engine.call("sleep", level) == "ok"
            assert engine.call("wake_up", *BOTH) == "ok"
            engine.run(WORK)
    config, steps = read_record(path)
    assert len(steps) > 30
    assert replay(Start.of(config).worker, steps) is None
