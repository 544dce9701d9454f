"""Heads on the target's hidden states: output is the same to the bit, each draft is the definition's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_draft_models import Noted, counts, going_on, quiet
from test_drafts import AXES, BASE, requests, same

from counted import Counted
from followers import Target
from local_engine import LocalEngine, Output
from random_heads import HEADS, KINDS, MEDUSA, drawing, guessing, medusa_tensors, write_heads
from slipway.engine.config import DraftConfig, EngineConfig
from slipway.load.checkpoint import open_checkpoint
from slipway.load.errors import LoadError
from slipway.worker.drafts.plan import with_draft
from slipway.worker.planning import plan_model
from tensor_files import load, save


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a random checkpoint of a kind."""
    root = tmp_path_factory.mktemp("heads")

    def folder(kind: str) -> Path:
        place = root / kind
        return place if place.exists() else write_heads(kind, place)

    return folder


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_each_draft_is_that_of_the_definition(
    tiny_models: Callable[[str], Path], heads: Callable[[str], Path], kind: str
) -> None:
    reference = KINDS[kind][3]
    settings = BASE | {"dtype": "float32", "max_num_batched_tokens": 32} | guessing(kind, heads(kind))
    greedy = [
        (prompt, msgspec.structs.replace(params, temperature=0.0, logit_bias=(), bad_words=()))
        for prompt, params in requests()
    ]
    with going_on(tiny_models("llama"), **settings) as engine:
        noted = Noted(engine)
        engine.run(greedy)
    tensors = load(heads(kind) / "model.safetensors")
    target = Target.of(tiny_models("llama"))
    states: dict[tuple[int, ...], np.ndarray] = {}  # of the longest texts; the others begin them
    checked = 0
    for known, params, drafts in sorted(noted.drafts, key=lambda one: -len(one[0])):
        if counts(params):
            continue
        text = next((text for text in states if list(text[: len(known)]) == known), tuple(known))
        if text not in states:
            states[text] = target.rows(known)[-1]
        hidden = states[text][len(known) - 2]
        for place, draft in enumerate(drafts):
            logits = reference(tensors, hidden, known[-1:] + drafts[:place])
            assert logits[draft] > logits.max() - 1e-3
            checked += 1
    assert checked > 200


@pytest.fixture(scope="module")
def alone(tiny_models: Callable[[str], Path]) -> list[Output]:
    with LocalEngine(tiny_models("llama"), dtype="bfloat16", threads=1, **BASE) as engine:
        return [engine.run([one])[0] for one in requests()]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("kind", ["medusa", "mlp speculator"])
def test_heads_change_no_token_and_no_logprob(
    tiny_models: Callable[[str], Path],
    heads: Callable[[str], Path],
    alone: list[Output],
    kind: str,
    axis: str,
) -> None:
    settings = BASE | {"dtype": "bfloat16"} | guessing(kind, heads(kind)) | AXES[axis]
    with going_on(tiny_models("llama"), **settings) as engine:
        counted = Counted(engine)
        same(engine.run(requests()), alone)
    assert counted.rejected > 200


@pytest.mark.parametrize("kind", ["medusa", "mlp speculator"])
def test_drafts_do_not_depend_on_company(
    tiny_models: Callable[[str], Path], heads: Callable[[str], Path], kind: str
) -> None:
    settings = BASE | {"dtype": "bfloat16"} | guessing(kind, heads(kind))
    found = []
    for many in (True, False):
        with going_on(tiny_models("llama"), **settings) as engine:
            noted = Noted(engine)
            for group in [requests()] if many else [[one] for one in requests()]:
                engine.run(group)
        found.append(sorted((known, drafts) for known, _, drafts in noted.drafts))
    assert found[0] == found[1]


def planned(target: Path, kind: str, folder: Path, **fields: Any) -> None:
    settings = guessing(kind, folder) | fields
    config = EngineConfig(model=str(target), use_tqdm_on_load=False, **settings)  # type: ignore[arg-type]
    with_draft(plan_model(open_checkpoint(config, quiet), config), config, quiet)


@pytest.mark.parametrize("kind", ["medusa", "mlp speculator"])
def test_a_configuration_says_what_it_is_and_how_many_heads_there_are(
    tiny_models: Callable[[str], Path], heads: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    method = KINDS[kind][0]
    config = json.loads((heads(kind) / "config.json").read_text()) | {"model_type": method}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(heads(kind) / "model.safetensors")
    draft = DraftConfig(method="draft_model", model=str(tmp_path))
    with going_on(tiny_models("llama"), **(BASE | {"dtype": "float32", "draft": draft})) as engine:
        assert engine.start.config.num_drafts == HEADS
        noted = Noted(engine)
        engine.run(requests()[:2])
    assert max(len(drafts) for _, _, drafts in noted.drafts) == HEADS


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["medusa", "mlp speculator"])
@pytest.mark.parametrize("level", ["1", "2"])
def test_heads_wake_to_the_same_drafts(
    tiny_models: Callable[[str], Path], heads: Callable[[str], Path], kind: str, level: str
) -> None:
    settings = BASE | {"dtype": "float32"} | guessing(kind, heads(kind))
    with going_on(tiny_models("llama"), **settings) as engine:
        found = []
        for _ in range(2):
            noted = Noted(engine)
            answers = engine.run(requests())
            found.append((answers, sorted((known, drafts) for known, _, drafts in noted.drafts)))
            assert engine.call("sleep", level) == "ok"
            assert engine.call("wake_up", "weights", "kv_cache") == "ok"
    assert found[0] == found[1]
    assert len(found[0][1]) > 50


@pytest.mark.torch
def test_what_transformers_runs_has_no_heads(
    tiny_models: Callable[[str], Path], heads: Callable[[str], Path]
) -> None:
    with pytest.raises(LoadError, match="transformers' code"):
        planned(tiny_models("gpt2"), "medusa", heads("medusa"))


def test_heads_that_do_not_fit_are_refused(
    tiny_models: Callable[[str], Path], heads: Callable[[str], Path], tmp_path: Path
) -> None:
    llama, folder = tiny_models("llama"), heads("medusa")
    planned(llama, "medusa", folder)
    with pytest.raises(LoadError, match=r"5 drafts are asked for, and .* has heads for 4"):
        planned(llama, "medusa", folder, num_drafts=5)
    for field, wrong, words in (
        ("hidden_size", 32, "reads rows of 32 numbers, and those of .* have 64"),
        ("vocab_size", 500, "knows 500 tokens, and .* has 512"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(MEDUSA | {field: wrong}))
        save({"one": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
        with pytest.raises(LoadError, match=words):
            planned(llama, "medusa", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MEDUSA))
    with pytest.raises(LoadError, match=r"one has shape \[1\]; expected: no such tensor"):
        LocalEngine(llama, **guessing("medusa", tmp_path))
    tensors = medusa_tensors(MEDUSA, drawing(0))
    del tensors["lm_heads.3.weight"]
    save(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=r"There is no lm_heads\.3\.weight"):
        LocalEngine(llama, **guessing("medusa", tmp_path))
