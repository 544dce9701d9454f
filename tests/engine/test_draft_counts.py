"""A thousand drafts accepted and a thousand rejected of each kind, in each way to draw: not a bit changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_draft_models import SMALLER, drafting, going_on

import followers
from counted import Counted, Helped
from factory import model_folders
from local_engine import LocalEngine, Output
from random_heads import guessing, write_heads
from slipway.engine.params import SamplingParams
from slipway.text import structure

pytestmark = pytest.mark.slow

BASE: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": 256, "num_blocks": 500}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_p": 0.9, "seed": 3},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": 0.3},
    "grammar": {"temperature": 0.8, "top_p": 0.9, "seed": 4},
}
WORDS = structure.of_regex("[a-z ]{1000}")
"""Forces no token: those would be drafts, too."""
NUM_TOKENS = 120


def prompts() -> list[list[int]]:
    rng = random.Random(9)
    return [[rng.randrange(3, 512) for _ in range(rng.randint(4, 40))] for _ in range(24)]


def answers(engine: LocalEngine, way: str) -> list[Output]:
    params = SamplingParams(NUM_TOKENS, num_logprobs=1, **WAYS[way])
    fields = {"grammar": WORDS} if way == "grammar" else {}
    names = [engine.add(prompt, params, **fields) for prompt in prompts()]
    engine.finish()
    return [replace(engine.output(name), num_preemptions=0) for name in names]


Case = Callable[[str], list[Output]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    variants = {"llama": ("llama", {}), "other": ("qwen3", {"seed": 5, **SMALLER})}
    return model_folders(tmp_path_factory.mktemp("counted"), variants)


@pytest.fixture(scope="module")
def settings(models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By what drafts."""
    root = tmp_path_factory.mktemp("drafting")
    return {
        "n-grams": {"num_drafts": 4, "prompt_lookup_min": 1},
        "draft model": drafting(models("other")),
        **{kind: guessing(kind, write_heads(kind, root / kind)) for kind in ("medusa", "mlp speculator")},
        "mtp": followers.guessing(
            "two mtp layers", followers.write_follower("two mtp layers", root / "mtp"), 4
        ),
    }


@pytest.fixture(scope="module")
def plain(models: Callable[[str], Path]) -> Case:
    @cache
    def found(way: str) -> list[Output]:
        with LocalEngine(models("llama"), **BASE) as engine:
            return answers(engine, way)

    return found


@pytest.mark.parametrize("drafts", ["n-grams", "draft model", "medusa", "mlp speculator", "mtp"])
@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_are_accepted_and_a_thousand_rejected(
    models: Callable[[str], Path], settings: dict[str, Any], plain: Case, way: str, drafts: str
) -> None:
    expected = plain(way)
    known = [prompt + one.tokens for prompt, one in zip(prompts(), expected, strict=True)]
    with going_on(models("llama"), **(BASE | settings[drafts])) as engine:
        counted, worker = Counted(engine), engine.worker
        worker.proposer = Helped(known, 4, rate=0.2, other=worker.proposer, share=0.7)  # type: ignore[attr-defined]
        assert answers(engine, way) == expected
    assert counted.accepted >= 1000
    assert counted.rejected >= 1000
