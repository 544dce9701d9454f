"""`--calculate-kv-scales`: the first step finds the scales of an fp8 KV cache, on CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from factory import make_model
from local_engine import LocalEngine, Output
from model.stepping import Stepper, plan, prompt
from outliers import distance, make_outlying
from slipway.engine.params import SamplingParams

Models = Callable[[str], Path]
FOUND = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}
FIRST, SECOND, THIRD = (prompt(40, seed) for seed in (1, 2, 3))


def engine(model: Path, **settings: object) -> LocalEngine:
    return LocalEngine(model, **({"dtype": "bfloat16", "max_model_len": 128} | settings))


def answer(served: LocalEngine, tokens: list[int]) -> Output:
    params = SamplingParams(4, temperature=0.0, num_logprobs=1, num_prompt_logprobs=0)
    return served.run([(tokens, params)])[0]


def answers(model: Path, *prompts: list[int], **settings: object) -> list[Output]:
    """One after another, of one engine."""
    with engine(model, **settings) as served:
        return [answer(served, tokens) for tokens in prompts]


@pytest.mark.parametrize("model_impl", ["auto", pytest.param("transformers", marks=pytest.mark.torch)])
@pytest.mark.parametrize("name", ["fp8", "fp8_e5m2"])
def test_keys_and_values_beyond_the_largest_of_eight_bits_survive(
    tmp_path: Path, name: str, model_impl: str
) -> None:
    plain, outlying = make_outlying(tmp_path)
    settings = {"kv_cache_dtype": name, "model_impl": model_impl}
    (exact,) = answers(plain, FIRST, model_impl=model_impl)
    (rounded,) = answers(plain, FIRST, **settings)
    (saturated,) = answers(outlying, FIRST, **settings)
    (found,) = answers(outlying, FIRST, calculate_kv_scales=True, **settings)
    assert distance(found, exact) < 2 * distance(rounded, exact)
    assert distance(saturated, exact) > 10 * distance(found, exact)


def test_what_the_first_step_found_stays(tiny_models: Models) -> None:
    model = tiny_models("llama")
    _, after_first = answers(model, FIRST, SECOND, **FOUND)
    *_, after_both = answers(model, FIRST, THIRD, SECOND, **FOUND)
    (alone,) = answers(model, SECOND, **FOUND)
    assert after_both == after_first
    assert distance(alone, after_first) > 0


def test_a_server_that_is_started_again_finds_the_same(tmp_path: Path) -> None:
    model = make_model("qwen3", tmp_path, head_dim=24)
    once = answers(model, FIRST, SECOND, threads=1, **FOUND)
    assert answers(model, FIRST, SECOND, threads=2, **FOUND) == once


def test_cached_and_recomputed_prefixes_go_on_by_the_same_scales(tiny_models: Models) -> None:
    model = tiny_models("llama")
    first, again = (one.logprobs for one in answers(model, FIRST, FIRST, **FOUND))
    assert again == first
    work = [([i + 3] * 24, SamplingParams(8, temperature=0.0, num_logprobs=1)) for i in range(3)]
    with engine(model, block_size=8, **FOUND) as ample:
        answer(ample, FIRST)
        expected = ample.run(work)
    with engine(model, block_size=8, num_blocks=10, max_model_len=80, **FOUND) as short:
        answer(short, FIRST)
        found = short.run(work)
    assert sum(one.num_preemptions for one in found) > 0
    assert [one.logprobs for one in found] == [one.logprobs for one in expected]


def test_what_comes_before_the_first_request_finds_nothing(tiny_models: Models) -> None:
    model = tiny_models("llama")
    (served,) = answers(model, FIRST, dtype="float32", **FOUND)
    stepper = Stepper(model, **FOUND)
    assert stepper.plan.kv_divisors is not None
    stepper.model.find_kv_scales(*stepper.plan.kv_divisors)
    drawn = stepper.greedy({0: FIRST}, 4)[0]
    assert [(token, one.logprob) for token, one in zip(served.tokens, served.logprobs, strict=True)] == drawn


def test_scales_that_are_given_win_and_the_start_says_so(tiny_models: Models, tmp_path: Path) -> None:
    model, path = tiny_models("llama"), tmp_path / "scales.json"
    path.write_text(json.dumps({"kv_cache": {"scaling_factor": {"0": {"1": 0.5}}}}))
    given = {"kv_cache_dtype": "fp8", "quantization_param_path": str(path)}
    expected = answers(model, FIRST, **given)
    with engine(model, calculate_kv_scales=True, **given) as served:
        assert [answer(served, FIRST)] == expected
        notice = (
            "--calculate-kv-scales has no effect: --quantization-param-path gives scales of keys and values."
        )
        assert notice in served.start.warnings


def test_without_an_fp8_cache_nothing_is_found(tiny_models: Models) -> None:
    model = tiny_models("llama")
    assert plan(model, calculate_kv_scales=True).kv_divisors is None
    assert answers(model, FIRST, calculate_kv_scales=True) == answers(model, FIRST)


def test_the_environment_sets_the_divisors(tiny_models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K_SCALE_CONSTANT", "300")
    assert plan(tiny_models("llama"), **FOUND).kv_divisors == (300.0, 100.0)
