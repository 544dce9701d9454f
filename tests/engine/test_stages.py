"""Pipeline stages, one after another: the same arithmetic as of one, so the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_draft_models import drafting
from test_given_rows import embedded
from test_processors import named
from test_sleep import BOTH

import followers
from adapter_runs import adapter, ref
from counted import Counted
from factory import ARCHITECTURES, make_model, model_folders
from local_engine import LocalEngine, Output
from pipeline import Stages
from random_heads import guessing, write_heads
from slipway.engine import start
from slipway.engine.messages import NO_TOKEN
from slipway.engine.params import SamplingParams
from slipway.load.errors import LoadError
from slipway.text import structure

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "num_blocks": 64,
    "max_num_batched_tokens": 32,
}
PROMPTS = [[7 * i % 500 + 3 for i in range(1, 4 + 9 * j)] for j in range(5)]
WORK = [
    (prompt, SamplingParams(12, temperature=0.0 if i % 2 else 0.8, seed=i, num_logprobs=2))
    for i, prompt in enumerate(PROMPTS)
]


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalEngine]:
    def made(model: Path, count: int, **settings: Any) -> LocalEngine:
        if count > 1:
            monkeypatch.setattr(start, "loader", lambda device: Stages)
            monkeypatch.setattr(start.Start, "of", start.Start._of)
        return LocalEngine(model, pipeline_parallel_size=count, **(SETTINGS | settings))

    return made


def outputs(engine: LocalEngine) -> list[Output]:
    with engine:
        return engine.run(WORK)


OF_TRANSFORMERS = ("opt", "gpt2", "phi3")
NATIVE = [name for name in ARCHITECTURES if name not in OF_TRANSFORMERS]
Served = Callable[..., LocalEngine]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Of four layers each."""
    variants = {
        name: (
            name,
            {"num_hidden_layers": 4} | ({} if "moe" in name or name == "mixtral" else {"head_dim": 16}),
        )
        for name in NATIVE
    }
    variants["qwen3_moe"] = ("qwen3_moe", {"num_hidden_layers": 4, "head_dim": 16})
    kinds = ["full_attention", *(["sliding_attention"] * 3)]
    variants["ministral"][1]["layer_types"] = kinds
    variants["three"] = ("llama", {})
    variants["draft"] = ("llama", {"num_hidden_layers": 2, "seed": 3})
    return model_folders(tmp_path_factory.mktemp("models"), variants)


@pytest.mark.parametrize("architecture", NATIVE)
def test_stages_make_what_one_makes(architecture: str, models: Callable[[str], Path], staged: Served) -> None:
    model = models(architecture)
    alone = outputs(staged(model, 1))
    assert len({token for output in alone for token in output.tokens}) > 10
    assert outputs(staged(model, 2)) == alone
    assert outputs(staged(model, 4)) == alone
    assert outputs(staged(model, 3, layer_partition=[2, 1, 1])) == alone


@pytest.mark.torch
@pytest.mark.parametrize("architecture", OF_TRANSFORMERS)
def test_transformers_code_has_no_stages(architecture: str, tmp_path: Path, staged: Served) -> None:
    model = make_model(architecture, tmp_path / "model")
    with pytest.raises(LoadError, match="run by transformers' code, whose layers are not dealt to stages"):
        staged(model, 2)


def answers(engine: LocalEngine, prompts: list[list[int]]) -> list[Output]:
    drawn = ({"temperature": 0.7 if i % 2 else 0.0, "seed": i} for i in range(len(prompts)))
    return engine.run([(one, SamplingParams(24, **how)) for one, how in zip(prompts, drawn, strict=True)])  # type: ignore[arg-type]


def tokens_of(engine: LocalEngine, prompts: list[list[int]]) -> list[list[int]]:
    return [one.tokens for one in answers(engine, prompts)]


REPEATING = [[*range(20, 50), *([90 + i, 91, 92, 93] * 5)] for i in range(6)]
ANSWERING: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "fp8 KV cache": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    "found scales": {"dtype": "bfloat16", "kv_cache_dtype": "fp8", "calculate_kv_scales": True},
    "n-grams": {"num_drafts": 4, "prompt_lookup_min": 1},
    "preemption": {"num_blocks": 8, "max_model_len": 96},
    "dummy weights": {"load_format": "dummy"},
    "random weights of another seed": {"load_format": "dummy", "seed": 5},
}


@pytest.mark.parametrize("feature", ANSWERING)
def test_settings_are_those_of_every_stage(
    feature: str, models: Callable[[str], Path], staged: Served
) -> None:
    found = []
    for count in (1, 2, 3):
        with staged(models("llama"), count, **ANSWERING[feature]) as engine:
            counted = Counted(engine) if feature == "n-grams" and count == 1 else None
            first = tokens_of(engine, REPEATING[:1])  # alone: it finds the scales
            all_of_them = answers(engine, REPEATING)
            found.append([first, [one.tokens for one in all_of_them]])
        if counted is not None:
            assert counted.accepted
        assert any(one.num_preemptions for one in all_of_them) == (feature == "preemption")
        assert any(one.num_cached_tokens for one in all_of_them)
    assert found[1] == found[0]
    assert found[2] == found[0]


GUESSING: dict[str, Callable[[Callable[[str], Path], Path], dict[str, Any]]] = {
    "draft model": lambda models, place: drafting(models("draft")),
    "itself": lambda models, place: drafting(models("llama")),
    "medusa": lambda models, place: guessing("medusa", write_heads("medusa", place)),
    "eagle": lambda models, place: followers.guessing("eagle", followers.write_follower("eagle", place), 3),
    "mtp": lambda models, place: followers.guessing(
        "two mtp layers", followers.write_follower("two mtp layers", place), 3
    ),
}


@pytest.mark.parametrize("method", GUESSING)
def test_what_guesses_lives_on_the_last_stage(
    method: str, models: Callable[[str], Path], tmp_path: Path, staged: Served
) -> None:
    settings = GUESSING[method](models, tmp_path / "heads")
    model = models("three" if method in ("eagle", "mtp") else "llama")
    with staged(model, 1) as engine:
        alone = tokens_of(engine, REPEATING)
    with staged(model, 2, **settings) as engine:
        engine.core.scheduler.guessing = None  # drafts go on, however few are accepted
        worker = engine.worker
        assert isinstance(worker, Stages)
        assert [one.proposer is not None for one in worker.workers] == [False, True]
        assert tokens_of(engine, REPEATING) == alone
        first, last = (one.slots for one in worker.workers)
        assert (first.num_computed[:6] > 0).all()
        assert (
            first.num_tokens[:6].tolist() != last.num_tokens[:6].tolist()
        )  # of the last step nobody is told
        if method == "itself":
            steps = engine.core.news.num_steps
            assert steps < 24 * 2  # two requests a step would be 72


def test_rows_of_layers_elsewhere_are_refused(
    models: Callable[[str], Path], tmp_path: Path, staged: Served
) -> None:
    settings = followers.guessing("eagle3", followers.write_follower("eagle3", tmp_path / "heads"), 3)
    with pytest.raises(LoadError, match=r"reads the rows before the layers .* begins with layer 2"):
        staged(models("three"), 2, **settings)


@pytest.mark.torch
def test_grammars_processors_adapters_and_rows_are_followed(
    models: Callable[[str], Path], tmp_path: Path, staged: Served
) -> None:
    model = models("llama")
    added = adapter(model, tmp_path / "adapter")
    grammar = structure.of_regex("[ab]{4,12}c")
    rows = embedded(model, REPEATING[0])
    greedy = SamplingParams(16, temperature=0.0, num_prompt_logprobs=1)
    raised = SamplingParams(16, temperature=0.0, processors=(named("raised", 77, by=10.0),))
    asked: list[tuple[list[int], SamplingParams, dict[str, Any]]] = [
        (REPEATING[0], greedy, {}),
        (REPEATING[1], greedy, {"adapter": ref(added)}),
        (REPEATING[2], SamplingParams(16, temperature=0.0), {"grammar": grammar}),
        (
            REPEATING[2],
            SamplingParams(16, temperature=0.9, seed=3),
            {"grammar": grammar, "adapter": ref(added)},
        ),
        (REPEATING[3], raised, {}),
        ([NO_TOKEN] * len(REPEATING[0]), SamplingParams(16, temperature=0.0), {"prompt_embeds": rows}),
    ]
    found = []
    for count in (1, 2, 4):
        settings = {"max_loras": 1, "processors": True, "enable_prompt_embeds": True, "num_drafts": 3}
        with staged(model, count, prompt_lookup_min=1, **settings) as engine:
            names = [engine.add(prompt, params, **fields) for prompt, params, fields in asked]
            engine.finish()
            assert not [delta.error for name in names for delta in engine.hub.deltas[name] if delta.error]
            found.append([engine.output(name) for name in names])
    assert len({tuple(one.tokens) for one in found[0]}) >= 5
    assert found[1] == found[0]
    assert found[2] == found[0]


@pytest.mark.parametrize("level", ["1", "2"])
def test_all_stages_sleep_and_wake(level: str, models: Callable[[str], Path], staged: Served) -> None:
    with staged(models("llama"), 2) as engine:
        before = tokens_of(engine, REPEATING)
        assert engine.call("sleep", level) == "ok"
        assert engine.call("wake_up", *BOTH) == "ok"
        assert tokens_of(engine, REPEATING) == before


def test_the_last_stage_pools(models: Callable[[str], Path], staged: Served) -> None:
    found = []
    for count in (1, 2, 4):
        with staged(models("llama"), count, task="embed") as engine:
            found.append([one.tobytes() for one in engine.pool(REPEATING)])
    assert found[1] == found[0]
    assert found[2] == found[0]
