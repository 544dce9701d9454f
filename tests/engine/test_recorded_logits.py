"""The CPU engine in fp32 against what transformers computed once: tests/recorded_logits.py.

A token that transformers did not draw counts unless its own two largest logits are within 1e-3; comparison
of that prompt ends there. Log-probabilities of the same tokens are within 1e-3.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import recorded_logits
from factory import VOCABULARY, model_folders
from local_engine import LocalEngine, Output
from recorded_logits import BEST, DEMO, FOLDER, NEAR_TIE, TINY, TOLERANCE, Recorded
from slipway.engine.params import SamplingParams


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return model_folders(tmp_path_factory.mktemp("recorded"), TINY)


def differences(recorded: Recorded, number: int, output: Output) -> list[str]:
    """Where an output is not what is recorded, up to its first near tie."""
    drawn, gaps, expected = recorded.drawn(number), recorded.gaps(number), recorded.logprobs(number)
    assert len(output.tokens) == len(drawn)
    for step, (token, found) in enumerate(zip(output.tokens, output.logprobs, strict=True)):
        if token != drawn[step]:
            tie = gaps[step] < NEAR_TIE
            return [] if tie else [f"token {step} is {token}, not {drawn[step]} (gap {gaps[step]:.4f})"]
        for other, logprob in found.top:
            if other in expected[step] and abs(logprob - expected[step][other]) > TOLERANCE:
                return [f"token {other} at {step} has {logprob:.4f}, not {expected[step][other]:.4f}"]
    return []


def compared(recorded: Recorded, engine: LocalEngine, num_logprobs: int) -> list[Output]:
    numbers = range(len(recorded))
    params = SamplingParams(len(recorded.drawn(0)), temperature=0.0, num_logprobs=num_logprobs)
    outputs = engine.run([(recorded.prompt(number), params) for number in numbers])
    wrong = [
        (number, problem)
        for number, output in zip(numbers, outputs, strict=True)
        for problem in differences(recorded, number, output)
    ]
    assert wrong == []
    return outputs


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_draws_what_transformers_draws_as_probably(
    models: Callable[[str], Path], name: str
) -> None:
    recorded = Recorded.read(name)
    settings = {"dtype": "float32", "max_model_len": 128, "max_logprobs": VOCABULARY}
    with LocalEngine(models(name), **settings, max_num_batched_tokens=32) as engine:
        assert engine.start.plan.route.spec, "it is not run by native code"
        for output in compared(recorded, engine, VOCABULARY):
            assert len(output.logprobs[0].top) == VOCABULARY


def test_the_demo_model_draws_what_transformers_draws_as_probably(demo_model: Path) -> None:
    recorded = Recorded.read(DEMO)
    assert len(recorded) == 10
    with LocalEngine(demo_model, dtype="float32", max_model_len=2048, threads=2) as engine:
        compared(recorded, engine, BEST)


def test_packed_weights_give_the_demo_models_text_about_the_same_probability(demo_model: Path) -> None:
    """Half of the tokens within 0.02, nearly all within 0.15, of what the dequantized model gives them."""
    recorded = Recorded.read(DEMO)
    scored = SamplingParams(1, temperature=0.0, num_prompt_logprobs=0)
    numbers = range(len(recorded))
    texts = [recorded.prompt(number) + recorded.drawn(number) for number in numbers]
    with LocalEngine(demo_model, dtype="bfloat16", max_model_len=2048, threads=2) as engine:
        outputs = engine.run([(text, scored) for text in texts])
    errors = []
    for number, output in zip(numbers, outputs, strict=True):
        found = output.prompt_logprobs[len(recorded.prompt(number)) :]
        for ours, token, theirs in zip(found, recorded.drawn(number), recorded.logprobs(number), strict=True):
            assert ours is not None
            errors.append(abs(ours.logprob - theirs[token]))
    assert len(errors) == len(recorded) * recorded_logits.DEMO_LENGTH
    assert np.median(errors) < 0.02
    assert np.quantile(errors, 0.99) < 0.15


def test_a_difference_is_found(demo_model: Path) -> None:
    """Of a token, unless two were as likely; of a log-probability."""
    recorded = Recorded.read(DEMO)
    with LocalEngine(demo_model, dtype="float32", max_model_len=2048) as engine:
        params = SamplingParams(recorded_logits.DEMO_LENGTH, temperature=0.0, num_logprobs=BEST)
        (output,) = engine.run([(recorded.prompt(0), params)])
    assert differences(recorded, 0, output) == []
    recorded.tensors["0.drawn"][5] += 1
    assert "token 5 is" in differences(recorded, 0, output)[0]
    recorded.tensors["0.gaps"][5] = NEAR_TIE / 2
    assert differences(recorded, 0, output) == []
    recorded.tensors["0.logprobs"][4, 0] += 2 * TOLERANCE
    assert "at 4 has" in differences(recorded, 0, output)[0]


def test_what_is_recorded_is_small_and_of_each_model() -> None:
    files = {path.stem: path.stat().st_size for path in FOLDER.iterdir()}
    assert files.keys() == {DEMO, *TINY}
    assert sum(files.values()) < 2_000_000


@pytest.mark.slow
@pytest.mark.torch
def test_transformers_still_computes_what_is_recorded() -> None:
    for name, derived in recorded_logits.all_derived():
        recorded = Recorded.read(name)
        assert derived.tensors.keys() == recorded.tensors.keys()
        for number in range(len(recorded)):
            assert derived.prompt(number) == recorded.prompt(number)
            pairs = zip(derived.drawn(number), recorded.drawn(number), recorded.gaps(number), strict=True)
            tie = next((step for step, (now, then, _) in enumerate(pairs) if now != then), None)
            assert tie is None or recorded.gaps(number)[tie] < NEAR_TIE, (name, number, tie)
            steps = slice(tie)
            for now, then in zip(
                derived.logprobs(number)[steps], recorded.logprobs(number)[steps], strict=True
            ):
                common = now.keys() & then.keys()
                assert len(common) > BEST // 2
                assert all(abs(now[token] - then[token]) < TOLERANCE / 10 for token in common)
