"""Rows pooled on a device give what they give on a CPU, however prompts are cut and steps overlap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from device_runs import SMALL
from factory import make_model, model_folders
from local_engine import LocalEngine
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.load.arrays import Floats
from slipway.worker.device.pooling import PoolingWorker

TAG = 7
PROMPTS = [[9, 8, TAG, 6, 5, 4, 3, 12, 11, TAG, 31], [17], [40, TAG, 41, 42]]
"""The first takes two steps."""
ALL = {"pooling_type": "ALL"}
MEAN = {"pooling_type": "MEAN"}
STEP = {"pooling_type": "STEP", "step_tag_id": TAG}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folders = model_folders(tmp_path_factory.mktemp("pooled"), {"qwen2": ("qwen2", {"num_hidden_layers": 2})})
    return folders("qwen2")


def pooled(model: Path, prompts: list[list[int]] = PROMPTS, **settings: Any) -> list[Floats]:
    with LocalEngine(model, **(SMALL | {"task": "embed"} | settings)) as engine:
        return engine.pool(prompts)


def assert_close(found: list[Floats], wanted: list[Floats]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("kind", ["LAST", "MEAN", "CLS", "ALL", "STEP"])
def test_vectors_are_the_cpus(model: Path, kind: str) -> None:
    asked = {"override_pooler_config": STEP if kind == "STEP" else {"pooling_type": kind}}
    found = pooled(model, device="cuda", **asked)
    assert_close(found, pooled(model, **asked))
    in_turn = pooled(model, device="cuda", overlap=False, **asked)
    assert all(map(np.array_equal, found, in_turn))


def test_prompts_that_have_no_pages_side_by_side_are_pooled_one_after_the_other(model: Path) -> None:
    prompts = [[number + 3] * 15 for number in range(3)]
    asked: dict[str, Any] = {
        "override_pooler_config": MEAN,
        "max_model_len": 16,
        "num_blocks": 4,
        "long_prefill_token_threshold": 2,
        "max_num_partial_prefills": 3,
        "max_long_partial_prefills": 3,
        "swap_bytes": 1 << 20,
    }
    with LocalEngine(model, **(SMALL | {"task": "embed", "device": "cuda"} | asked)) as engine:
        assert any("swap has no effect: all pages of a prompt" in text for text in engine.start.warnings)
        found = engine.pool(prompts)
        assert engine.preemptions == 0
    assert_close(found, pooled(model, prompts, override_pooler_config=MEAN))


def test_a_slot_that_changes_hands_under_way_keeps_no_rows(model: Path) -> None:
    """What an aborted request's step brings is told of its slot before the next one takes it."""
    one_slot = {"max_num_seqs": 1, "override_pooler_config": MEAN}
    with LocalEngine(model, **(SMALL | {"task": "embed", "device": "cuda"} | one_slot)) as engine:
        given_up = engine.add(PROMPTS[0], SamplingParams(1), pooling=PoolingParams())
        engine.core.run_once()
        engine.abort(given_up)
        (found,) = engine.pool(PROMPTS[2:])
    assert_close([found], pooled(model, PROMPTS[2:], override_pooler_config=MEAN))


def reward_model(folder: Path) -> Path:
    """Two layers behind the rows."""
    make_model("qwen2", folder, num_hidden_layers=2, tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    weights |= {f"score.{name}": value.detach() for name, value in layers.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    named = {"architectures": ["Qwen2ForProcessRewardModel"]}
    (folder / "config.json").write_text(json.dumps(settings | named))
    return folder


def test_scores_of_tokens_come_from_the_device_also_behind_sleep(tmp_path: Path) -> None:
    """Each is two numbers there already, and not a row."""
    folder = reward_model(tmp_path)
    asked: dict[str, Any] = {"task": "auto", "override_pooler_config": {"step_tag_id": TAG}}
    wanted = pooled(folder, **asked)
    with LocalEngine(folder, **(SMALL | asked | {"device": "cuda"})) as engine:
        assert_close(engine.pool(PROMPTS), wanted)
        worker: Any = engine.worker
        moved: list[torch.Size] = []
        worker._move(lambda tensor: moved.append(tensor.shape) or tensor)
        assert moved[-2:] == [(64, 64), (2, 64)]
        for level in ("1", "2"):
            assert engine.call("sleep", level) == "ok"
            assert engine.call("wake_up", "kv_cache", "weights") == "ok"
            assert_close(engine.pool(PROMPTS), wanted)


@pytest.mark.parametrize("tied", [True, False])
def test_scores_may_be_logits_of_tokens(tmp_path: Path, tied: bool) -> None:
    folder = make_model("qwen2", tmp_path, num_hidden_layers=2, tie_word_embeddings=tied)
    named = {"classifier_from_token": ["n", "y"], "method": "from_2_way_softmax"}
    asked: dict[str, Any] = {"task": "score", "hf_overrides": named}
    assert_close(pooled(folder, device="cuda", **asked), pooled(folder, **asked))


def test_rows_that_are_no_numbers_fail_their_request_alone(tmp_path: Path) -> None:
    folder = make_model("qwen2", tmp_path, num_hidden_layers=2, tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][9] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    asked = {"task": "embed", "device": "cuda", "override_pooler_config": MEAN}
    with LocalEngine(folder, **(SMALL | asked)) as engine:
        names = [engine.add(one, SamplingParams(1), pooling=PoolingParams()) for one in ([5, 9], [5, 6])]
        engine.finish()
        (failed,) = engine.hub.deltas.pop(names[0])
        assert "no numbers" in failed.error
        assert np.isfinite(engine.pooled(names[1])).all()
        assert np.isfinite(engine.pool([[5, 6], [7, 8]])).all()  # also in the slot that had the NaN


@pytest.mark.parametrize("kind", ["LAST", "MEAN", "ALL"])
def test_no_more_goes_to_the_host_than_vectors(
    model: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    collect = PoolingWorker.collect

    def counted(worker: PoolingWorker) -> Any:
        _, vectors = worker._pooled[0]
        copied.append(0 if vectors is None else len(vectors.vectors))
        return collect(worker)

    monkeypatch.setattr(PoolingWorker, "collect", counted)
    pooled(model, PROMPTS[:1], device="cuda", override_pooler_config={"pooling_type": kind})
    assert sum(copied) == (len(PROMPTS[0]) if kind == "ALL" else 1)
