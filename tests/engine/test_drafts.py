"""Drafts change nothing: the same tokens and log-probabilities with and without them, whatever is sampled.

Real models on CPU. What a proposer guesses right and wrong is counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from counted import Counted, Knowing
from local_engine import LocalEngine, Output
from slipway.engine.params import SamplingParams

pytestmark = pytest.mark.slow

Request = tuple[list[int], SamplingParams]
BASE: dict[str, object] = {"max_model_len": 256, "num_blocks": 400, "enable_prefix_caching": False}
DRAFTS: dict[str, object] = {"num_drafts": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}

WAYS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 11},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "seeded penalties": {"temperature": 0.7, "presence_penalty": 0.8, "min_p": 0.02, "seed": 12},
    "bias": {"temperature": 0.0, "logit_bias": ((7, 4.0), (9, -4.0), (11, 3.0))},
    "bad words": {"temperature": 0.5, "bad_words": ((8,), (7, 11)), "seed": 13, "top_k": 4},
    "min tokens": {"temperature": 0.9, "min_tokens": 30, "stop_token_ids": tuple(range(80)), "seed": 14},
    "stop": {"temperature": 0.0, "stop_token_ids": tuple(range(3, 512, 60)), "min_tokens": 3},
    "typical": {"temperature": 1.2, "typical_p": 0.6, "seed": 15},
    "prompt logprobs": {"temperature": 0.0, "num_prompt_logprobs": 1},
}


def requests(max_tokens: int = 60) -> list[Request]:
    """Prompts that repeat themselves, with a common beginning; one for each way to draw, and each greedy."""
    rng = random.Random(3)
    common = [rng.randrange(3, 512) for _ in range(20)]
    made: list[Request] = []
    for way in WAYS.values():
        phrase = [rng.randrange(3, 512) for _ in range(rng.randint(1, 8))]
        params = SamplingParams(max_tokens, num_logprobs=2, **way)  # type: ignore[arg-type]
        made.append((common + phrase * rng.randint(2, 5), params))
    return made


@pytest.fixture(scope="module", params=["llama float32", "llama bfloat16", "gemma3_text bfloat16"])
def case(
    request: pytest.FixtureRequest, tiny_models: Callable[[str], Path]
) -> tuple[Path, str, list[Output]]:
    """A model, and what each request gives alone without drafts, on one thread."""
    architecture, dtype = request.param.split()
    with LocalEngine(tiny_models(architecture), dtype=dtype, threads=1, **BASE) as engine:
        return tiny_models(architecture), dtype, [engine.run([one])[0] for one in requests()]


AXES: dict[str, dict[str, object]] = {
    "in company": {},
    "chunked prefill": {"max_num_batched_tokens": 32},
    "preemption": {"num_blocks": 20, "max_num_batched_tokens": 64},
    "prefix cache and preemption": {"num_blocks": 20, "enable_prefix_caching": True},
    "blocks of 1": {"block_size": 1, "num_blocks": 6400},
    "overlap": {"overlap": True, "num_blocks": 20},
    "three threads": {"threads": 3},
}


def same(outputs: list[Output], expected: list[Output]) -> None:
    for name, output, one in zip(WAYS, outputs, expected, strict=True):
        assert output.tokens == one.tokens, name
        assert output.logprobs == one.logprobs, name
        assert output.prompt_logprobs == one.prompt_logprobs, name
        assert output.finish_reason == one.finish_reason, name


@pytest.mark.parametrize("knows", [False, True], ids=["n-grams", "a proposer that knows"])
@pytest.mark.parametrize("axis", AXES)
def test_drafts_change_no_token_and_no_logprob(
    case: tuple[Path, str, list[Output]], axis: str, knows: bool
) -> None:
    model, dtype, alone = case
    with LocalEngine(model, dtype=dtype, **(BASE | DRAFTS | AXES[axis])) as engine:
        counted = Counted(engine)
        engine.core.scheduler.guessing = None  # they go on, however few are accepted
        if knows:
            texts = [prompt + one.tokens for (prompt, _), one in zip(requests(), alone, strict=True)]
            engine.worker.proposer = Knowing(texts, 4, rate=0.3)  # type: ignore[attr-defined]
        together = engine.run(requests())
    same(together, alone)
    assert counted.accepted > (200 if knows else 20)
    assert counted.rejected > 100
    if "preemption" in axis:
        assert sum(one.num_preemptions for one in together) > 0


def test_drafts_change_nothing_of_a_request_alone(case: tuple[Path, str, list[Output]]) -> None:
    model, dtype, alone = case
    with LocalEngine(model, dtype=dtype, **(BASE | DRAFTS)) as engine:
        same([engine.run([one])[0] for one in requests()], alone)


def test_requests_whose_drafts_are_in_vain_stop_asking_for_them(tiny_models: Callable[[str], Path]) -> None:
    work = [(prompt, SamplingParams(100, temperature=0.0)) for prompt, _ in requests()]
    with LocalEngine(tiny_models("llama"), dtype="float32", **BASE) as engine:
        plain = engine.run(work)
    known = [prompt + one.tokens for (prompt, _), one in zip(work, plain, strict=True)]
    verified = {}
    for rate in (0.0, 1.0):
        with LocalEngine(tiny_models("llama"), dtype="float32", **(BASE | DRAFTS)) as engine:
            counted = Counted(engine)
            engine.worker.proposer = Knowing(known, 4, rate)  # type: ignore[attr-defined]
            assert [one.tokens for one in engine.run(work)] == [one.tokens for one in plain]
            verified[rate] = counted.accepted + counted.rejected
            assert counted.rejected == 0 if rate == 0.0 else counted.accepted < 10
    most_in_vain = (
        1 / 0.05 + 4 + 3
    )  # a stake at the least cost; a last step past it; tries by pauses of 16, 32, 64
    assert 0 < verified[1.0] < len(work) * most_in_vain
    assert verified[0.0] > len(work) * 40


@pytest.mark.parametrize("guessing", [4, None])
def test_from_so_many_running_requests_on_nothing_is_drafted(
    tiny_models: Callable[[str], Path], guessing: int | None
) -> None:
    settings = BASE | DRAFTS | {"max_guessing": guessing}
    with LocalEngine(tiny_models("llama"), dtype="float32", **settings) as engine:
        counted = Counted(engine)
        engine.core.scheduler.guessing = None
        same_length = [(prompt, SamplingParams(30, temperature=0.0)) for prompt, _ in requests()]
        for prompts, drafted in ((same_length[:4], guessing is None), (same_length[:3], True)):
            before = counted.accepted + counted.rejected
            engine.run(prompts)
            assert (counted.accepted + counted.rejected > before) is drafted


def test_models_that_transformers_runs_verify_drafts_as_well(tiny_models: Callable[[str], Path]) -> None:
    work = [(prompt, SamplingParams(30, temperature=0.0)) for prompt, _ in requests()[:4]]
    served = BASE | {"model_impl": "transformers", "dtype": "float32"}
    with LocalEngine(tiny_models("llama"), **served) as engine:
        plain = [engine.run([one])[0].tokens for one in work]
    with LocalEngine(tiny_models("llama"), **(served | DRAFTS)) as engine:
        counted = Counted(engine)
        engine.core.scheduler.guessing = None
        texts = [prompt + tokens for (prompt, _), tokens in zip(work, plain, strict=True)]
        engine.worker.proposer = Knowing(texts, 4, rate=0.3)  # type: ignore[attr-defined]
        assert [engine.run([one])[0].tokens for one in work] == plain
    assert counted.accepted > 50
    assert counted.rejected > 50
