"""Typical acceptance on the device: the same drafts give the CPU's tokens, which plain draws would not."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_runs import SMALL, assert_same
from factory import make_model
from local_engine import LocalEngine, Output
from slipway.engine.config import TypicalAcceptance
from slipway.engine.params import SamplingParams

RULE = TypicalAcceptance(threshold=0.09, alpha=0.3)
FEW = (5, 9, 14, 77)
"""Tokens that may be drawn: n-grams find each of them again."""
WAYS = (
    SamplingParams(8, temperature=0.9, seed=2, num_logprobs=1, allowed_token_ids=FEW),
    SamplingParams(8, temperature=1.2, top_k=3, seed=12, allowed_token_ids=FEW),
    SamplingParams(8, temperature=0.0, allowed_token_ids=FEW),
)
WORK = [([5, 9, 14, 77, 5, 77, 14, 9][place:], way) for place, way in enumerate(WAYS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("accepting"), num_hidden_layers=1)


def answers(model: Path, device: str, **settings: object) -> list[Output]:
    """Where every draw is followed by drafts, without pauses."""
    drafting = {"device": device, "max_num_batched_tokens": 24, "num_drafts": 2, "prompt_lookup_min": 1}
    with LocalEngine(model, **(SMALL | drafting | settings)) as engine:
        engine.core.scheduler.guessing = None
        return engine.run(WORK)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Output]:
    return answers(model, "cpu", acceptance=RULE)


@pytest.mark.slow
def test_the_same_drafts_give_the_tokens_of_the_cpu(model: Path, expected: list[Output]) -> None:
    found = answers(model, "cuda", overlap=False, acceptance=RULE)
    assert_same(found, expected)
    drawn = answers(model, "cpu")
    assert [one.tokens != other.tokens for one, other in zip(found, drawn, strict=True)] == [
        True,
        True,
        False,
    ]


@pytest.mark.slow
def test_steps_under_way_take_the_same_drafts(model: Path, expected: list[Output]) -> None:
    """But for the last tokens, where those are granted fewer that do not know yet how many there are."""
    found = answers(model, "cuda", overlap=True, acceptance=RULE)
    assert [one.tokens[:-3] for one in found] == [one.tokens[:-3] for one in expected]
