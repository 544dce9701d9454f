"""What guesses for a model on several ranks guesses what it would on one, and all ranks know it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import followers
import random_heads
from factory import make_model, model_folders
from local_engine import LocalEngine
from local_ranks import engine_of
from slipway.engine.config import DraftConfig
from slipway.engine.params import SamplingParams
from slipway.load.errors import LoadError
from tensor_files import load, save

pytestmark = pytest.mark.slow

BASE: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_blocks": 200, "max_num_seqs": 8}
GREEDY = SamplingParams(20, temperature=0.0)
SAMPLED = SamplingParams(20, temperature=0.8, seed=3)
SMALLER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
THREE = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
SIZES = pytest.mark.parametrize("size", [2, 3, 4])
Drafts = dict[tuple[int, ...], list[int]]
Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "llama": ("llama", {}),
        "three key heads": ("llama", THREE),
        "mixtral": ("mixtral", {}),
        "small": ("qwen3", {"seed": 5, **SMALLER}),
        "one head": ("qwen3", {"seed": 6, **SMALLER, "num_attention_heads": 1, "num_key_value_heads": 1}),
    }
    return model_folders(tmp_path_factory.mktemp("drafting"), kinds)


@pytest.fixture(scope="module")
def mimo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2 with two layers for MTP."""
    sizes = {"head_dim": followers.HEAD_DIM, "intermediate_size": followers.INTERMEDIATE}
    place = make_model("qwen2", tmp_path_factory.mktemp("mimo") / "it", tie_word_embeddings=False, **sizes)
    tensors = load(place / "model.safetensors") | followers.Mtp(2).tensors(random_heads.drawing(2))
    save(tensors, place / "model.safetensors")
    named = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 2}
    config = json.loads((place / "config.json").read_text()) | named
    (place / "config.json").write_text(json.dumps(config))
    return place


def prompts() -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(3, 500, 1 + 29 * number).tolist() for number in range(4)]


def run(model: Path, **fields: Any) -> tuple[list[list[int]], Drafts]:
    """What is said, and by the tokens before them what was drafted."""
    with engine_of(model, **BASE, **fields) as engine:
        engine.core.scheduler.guessing = None
        drafts = noted(engine) if "num_drafts" in fields else {}
        outputs = engine.run([(tokens, params) for tokens in prompts() for params in (GREEDY, SAMPLED)])
        return [one.tokens for one in outputs], drafts


def noted(engine: LocalEngine) -> Drafts:
    """Filled with what the proposer of the rank that draws leaves in its slots."""
    worker: Any = engine.drawing
    found: Drafts = {}
    follow = worker.proposer.follow

    def noting(slots: Any, plan: Any, result: Any) -> None:
        drew = result.requests["num_drawn"].tolist()
        follow(slots, plan, result)
        for slot, drawn in zip(plan.slots, drew, strict=True):
            if drawn and slots.num_drafts[slot]:
                known = slot % 2, *slots.known(slot).tolist()  # requests of either kind have slots by turns
                found[known] = slots.drafts(slot).tolist()

    worker.proposer.follow = noting
    return found


def check(model: Path, size: int, **fields: Any) -> None:
    said, drafts = run(model, **fields)
    found, same = run(model, tensor_parallel_size=size, **fields)
    assert found == said == run(model)[0]
    assert same == drafts
    assert len(drafts) > 20


@SIZES
@pytest.mark.parametrize(
    ("target", "draft", "whole"),
    [
        ("llama", "llama", False),
        ("llama", "small", False),
        ("llama", "small", True),
        ("three key heads", "small", True),
        ("three key heads", "one head", True),
    ],
)
def test_a_draft_model_guesses_the_same(
    models: Models, target: str, draft: str, whole: bool, size: int
) -> None:
    """Cut or whole, and also where ranks have unequal numbers of the target's key heads."""
    named = DraftConfig(
        method="draft_model", model=str(models(draft)), tensor_parallel_size=1 if whole else None
    )
    check(models(target), size, draft=named, num_drafts=3)


@SIZES
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_layers_on_the_targets_rows_guess_the_same(
    models: Models, tmp_path: Path, kind: str, size: int
) -> None:
    folder = followers.write_follower(kind, tmp_path / "it")
    check(models("llama"), size, **followers.guessing(kind, folder, 3))


@SIZES
def test_the_targets_own_layers_guess_the_same(mimo: Path, size: int) -> None:
    check(mimo, size, draft=DraftConfig(method="mtp", model=None), num_drafts=2)


@SIZES
@pytest.mark.parametrize("kind", random_heads.KINDS)
def test_heads_guess_the_same(models: Models, tmp_path: Path, kind: str, size: int) -> None:
    folder = random_heads.write_heads(kind, tmp_path / "it")
    check(models("llama"), size, **random_heads.guessing(kind, folder))


def test_experts_of_the_target_alone_are_given_out(models: Models) -> None:
    named = DraftConfig(method="draft_model", model=str(models("small")))
    fields = BASE | {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    with engine_of(models("mixtral"), **fields, draft=named, num_drafts=3) as engine:
        assert not any("expert" in one for one in engine.start.warnings)


@SIZES
def test_lookup_is_every_ranks_own(models: Models, size: int) -> None:
    said, _ = run(models("llama"))
    assert run(models("llama"), tensor_parallel_size=size, num_drafts=3)[0] == said


@pytest.mark.parametrize(
    ("draft", "size", "why", "hint"),
    [
        ("small", 3, "draft_tensor_parallel_size 3: with --tensor-parallel-size 2 .* is on 1 or 2", "out"),
        ("one head", None, "Of the draft model .* cannot cut 1 heads", "draft_tensor_parallel_size 1"),
    ],
)
def test_a_draft_model_that_cannot_be_cut_so_is_refused(
    models: Models, draft: str, size: int | None, why: str, hint: str
) -> None:
    named = DraftConfig(method="draft_model", model=str(models(draft)), tensor_parallel_size=size)
    with pytest.raises(LoadError, match=why) as refused:
        run(models("llama"), tensor_parallel_size=2, draft=named, num_drafts=3)
    assert hint in refused.value.hint
