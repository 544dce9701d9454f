"""Pipeline stages on devices: as processes, by the calls that NCCL gets, over gloo."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_device_given import table_rows

import followers
from device_runs import SMALL, assert_same
from device_stages import stages_here
from factory import model_folders
from local_engine import LocalEngine, Output
from made_adapter import Made
from random_heads import guessing, write_heads
from repeated_graphs import Repeated
from slipway.engine.config import DraftConfig
from slipway.engine.messages import NO_TOKEN
from slipway.engine.params import Processor, SamplingParams
from slipway.engine.pipelined import PipelinedWorker
from slipway.exits import Exit
from slipway.text import structure

pytestmark = pytest.mark.slow

Models = Callable[[str], Path]
Served = Callable[..., LocalEngine]
PROMPTS = [[5, 9, 31, 7, 120, 44, 3, 17, 260], [40, 41], [7], [9, 8, 7, 6]]
WORK = [
    (prompt, SamplingParams(6, temperature=0.0 if i % 2 else 0.8, seed=i, num_logprobs=2))
    for i, prompt in enumerate(PROMPTS)
]
RAISED = Processor("row_processors.raised", '[[77], {"by": 10.0}]')
REPEATING = [[*range(20, 26), *([90 + i, 91, 92] * 2)] for i in range(3)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    sizes: dict[str, Any] = {"num_hidden_layers": 3}
    names = {name: (name, sizes) for name in ("llama", "qwen2_moe")}
    names["gemma2"] = ("gemma2", sizes | {"head_dim": 24, "sliding_window": 6})
    return model_folders(tmp_path_factory.mktemp("staged"), names)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalEngine]]:
    """Engines whose stages are in this process."""

    def served(model: Path, pp: int, **settings: Any) -> LocalEngine:
        own = SMALL | {"device": "cuda", "pipeline_parallel_size": pp} | settings
        if pp == 1:
            return LocalEngine(model, **own)
        with stages_here(monkeypatch):
            return LocalEngine(model, **own)

    return served


def outputs(engine: LocalEngine) -> list[Output]:
    with engine:
        return engine.run(WORK)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2_moe"])
def test_stages_say_what_one_says(models: Models, staged: Served, name: str) -> None:
    model = models(name)
    alone = outputs(staged(model, 1))
    assert len({token for output in alone for token in output.tokens}) > 10
    assert_same(outputs(staged(model, 2)), alone)
    assert_same(outputs(staged(model, 2, layer_partition=[1, 2])), alone)
    assert_same(outputs(staged(model, 3)), alone)


ANSWERING: dict[str, dict[str, Any]] = {
    "fp8 KV cache": {"kv_cache_dtype": "fp8"},
    "found scales": {"kv_cache_dtype": "fp8", "calculate_kv_scales": True},
    "n-grams": {"num_drafts": 3, "prompt_lookup_min": 1},
    "preemption": {"num_blocks": 5, "max_model_len": 40},
    "swap": {"num_blocks": 5, "max_model_len": 40, "swap_bytes": 1 << 20},
    "layers on the host": {"offload_bytes": 1 << 30},
}


@pytest.mark.parametrize("feature", ANSWERING)
def test_settings_are_those_of_every_stage(models: Models, staged: Served, feature: str) -> None:
    work = [
        (prompt, SamplingParams(9, temperature=0.7 * (i % 2), seed=i)) for i, prompt in enumerate(REPEATING)
    ]
    # Its n-grams are guessed right on every processor: only one token is allowed.
    work[-1] = ([*REPEATING[0][:6], *[91] * 6], SamplingParams(9, temperature=0.0, allowed_token_ids=(91,)))
    found = []
    for pp in (1, 2):
        with staged(models("llama"), pp, **ANSWERING[feature]) as engine:
            first = engine.run(work[:1])  # alone: it finds the scales
            outputs = engine.run(work)
            found.append([one.tokens for one in (*first, *outputs)])
            verified = sum(one.speculated.accepted for one in engine.hub.stats if one.speculated)
        assert (sum(one.num_preemptions for one in outputs) > 0) == (feature in ("preemption", "swap"))
        assert any(one.num_cached_tokens for one in outputs)
        assert (verified > 0) == (feature == "n-grams")
    assert found[1] == found[0]


def test_swapped_pages_are_as_many_as_every_stage_has_room_for(models: Models, staged: Served) -> None:
    """The last stage has two of three layers, so that its pages are larger."""
    settings = {"layer_partition": [1, 2], "swap_bytes": 9 << 10}
    with staged(models("llama"), 2, **settings) as engine:
        counts = [worker.num_host_pages for worker in engine.worker.workers]
        assert counts[0] > counts[1] == engine.core.scheduler.cache.host.num_pages > 0


GUESSING: dict[str, Callable[[Models, Path], dict[str, Any]]] = {
    "draft model": lambda models, place: {
        "num_drafts": 3,
        "draft": DraftConfig(method="draft_model", model=str(models("llama"))),
    },
    "medusa": lambda models, place: guessing("medusa", write_heads("medusa", place)),
    "eagle": lambda models, place: followers.guessing("eagle", followers.write_follower("eagle", place), 3),
}


@pytest.mark.parametrize("method", GUESSING)
def test_what_guesses_lives_on_the_last_stage(
    method: str, models: Models, tmp_path: Path, staged: Served
) -> None:
    work = [(prompt, SamplingParams(9, temperature=0.0)) for prompt in REPEATING]
    with staged(models("llama"), 1) as engine:
        alone = [one.tokens for one in engine.run(work)]
    with staged(models("llama"), 2, **GUESSING[method](models, tmp_path / "heads")) as engine:
        assert [hasattr(worker._proposer, "guesser") for worker in engine.worker.workers] == [False, True]
        assert [one.tokens for one in engine.run(work)] == alone
        speculated = [one.speculated for one in engine.hub.stats if one.speculated]
    assert sum(one.proposed for one in speculated) > 0
    # A target that guesses its own tokens guesses right.
    assert method != "draft model" or sum(one.accepted for one in speculated) > 0


def test_grammars_processors_adapters_and_rows_are_followed(
    models: Models, tmp_path: Path, staged: Served
) -> None:
    model = models("llama")
    made = Made(model, tmp_path / "adapter", seed=1, r=4, lora_alpha=8)
    made.everywhere()
    added = made.save()
    greedy = SamplingParams(6, temperature=0.0)
    reported = SamplingParams(6, temperature=0.0, num_prompt_logprobs=1)
    raised = SamplingParams(6, temperature=0.0, processors=(RAISED,))
    grammar = structure.of_regex("[ab]{4,12}c")
    asked: list[tuple[list[int], SamplingParams, dict[str, Any]]] = [
        (REPEATING[0], reported, {}),
        (REPEATING[1], greedy, {"adapter": added}),
        (REPEATING[2], greedy, {"grammar": grammar}),
        (REPEATING[2], SamplingParams(6, temperature=0.9, seed=3), {"grammar": grammar, "adapter": added}),
        (REPEATING[1], raised, {}),
        ([NO_TOKEN] * 5, greedy, {"prompt_embeds": table_rows(model, REPEATING[0][:5])}),
    ]
    settings = {"max_loras": 1, "max_lora_rank": 4, "processors": True, "enable_prompt_embeds": True}
    settings |= {"num_drafts": 3, "prompt_lookup_min": 1}
    found = []
    for pp in (1, 2):
        with staged(model, pp, **settings) as engine:
            names = [engine.add(prompt, params, **fields) for prompt, params, fields in asked]
            engine.finish()
            assert not [delta.error for name in names for delta in engine.hub.deltas[name] if delta.error]
            found.append([engine.output(name) for name in names])
    assert len({tuple(one.tokens) for one in found[0]}) >= 5
    for outputs in found[1:]:
        assert_same(outputs, found[0])
        assert [one.prompt_logprobs for one in outputs][1:] == [one.prompt_logprobs for one in found[0]][1:]
        assert len(outputs[0].prompt_logprobs) == len(REPEATING[0])


def test_steps_in_graphs_take_and_give_the_same_rows(models: Models, staged: Served) -> None:
    """A stage may run a step as a graph, padded, which another launches kernel by kernel."""
    alone = outputs(staged(models("llama"), 1))
    with staged(models("llama"), 3) as engine:
        stages = engine.worker.workers
        repeated = [Repeated.into(stages[0], [1, 2, 4], 64), Repeated.into(stages[2], [4], 64)]
        assert all(key.features is None for key in repeated[0].steps)
        assert any(key.features is not None for key in repeated[1].steps)
        assert_same(engine.run(WORK), alone)
        assert min(one.replayed for one in repeated) > 4


@pytest.mark.parametrize("level", ["1", "2"])
def test_all_stages_sleep_and_wake(models: Models, staged: Served, level: str) -> None:
    with staged(models("llama"), 2) as engine:
        before = engine.run(WORK)
        assert engine.call("sleep", level) == "ok"
        assert engine.call("wake_up", "weights", "kv_cache") == "ok"
        assert_same(engine.run(WORK), before)


def test_the_last_stage_pools(models: Models, staged: Served) -> None:
    found = []
    for pp in (1, 2):
        with staged(models("llama"), pp, task="embed") as engine:
            found.append(engine.pool(PROMPTS))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def served(model: Path, pp: int, tp: int = 1) -> LocalEngine:
    """Whose ranks are processes."""
    sizes = {"device": "cuda", "pipeline_parallel_size": pp, "tensor_parallel_size": tp}
    return LocalEngine(model, **(SMALL | sizes))


@pytest.mark.parametrize(("pp", "tp"), [(3, 1), (2, 2)])
def test_stages_as_processes_say_what_one_says(models: Models, pp: int, tp: int) -> None:
    found = outputs(served(models("llama"), pp, tp))
    assert_same(found, outputs(served(models("llama"), 1)))


def test_a_stage_that_is_killed_ends_all_with_its_name(models: Models) -> None:
    with served(models("llama"), 3) as engine:
        for prompt in PROMPTS:
            engine.add(prompt, SamplingParams(40, temperature=0.0))
        for _ in range(4):
            engine.core.run_once()
        assert isinstance(engine.worker, PipelinedWorker)
        pids = [other.pid for other in engine.worker.team.ranks.values()]
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(Exit, match=rf"Rank 1 \(process {pids[0]}\) ended with SIGKILL"):
            engine.finish()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
