"""Layers that follow the target: output is the same to the bit, each draft is that of the definition."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_draft_models import Noted, counts, going_on, quiet
from test_drafts import AXES, BASE, Request, requests, same

import followers
from counted import Counted
from factory import VOCABULARY
from followers import KINDS, NAMED, SOME, Eagle, Eagle3, Target, write_follower
from local_engine import LocalEngine, Output
from random_heads import drawing
from slipway.engine.config import DraftConfig, EngineConfig
from slipway.load.checkpoint import open_checkpoint
from slipway.load.errors import LoadError
from slipway.worker.drafts.plan import with_draft
from slipway.worker.planning import plan_model
from tensor_files import Tensors, load, save

NUM_DRAFTS = 4
Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a random checkpoint of a kind."""
    root = tmp_path_factory.mktemp("followers")

    def folder(kind: str) -> Path:
        place = root / kind
        return place if place.exists() else write_follower(kind, place)

    return folder


def guessing(kind: str, folder: Path, **fields: Any) -> dict[str, object]:
    return followers.guessing(kind, folder, NUM_DRAFTS, **fields)


def greedy() -> list[Request]:
    plain = {"temperature": 0.0, "logit_bias": (), "bad_words": ()}
    return [(prompt, msgspec.structs.replace(params, **plain)) for prompt, params in requests()[::2]]


class Corrected(Noted):
    """Notes what is proposed, and puts what is known to come in its place."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine)
        self.texts: list[list[int]] = []

    def follow(self, slots: Any, plan: Any, result: Any) -> None:
        super().follow(slots, plan, result)
        for slot in plan.slots:
            known, count = slots.known(slot).tolist(), int(slots.num_drafts[slot])
            text = next((text for text in self.texts if text[: len(known)] == known), known)
            slots.guess(slot, text[len(known) :][:count])


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_each_draft_is_that_of_the_definition(tiny_models: Models, heads: Models, kind: str) -> None:
    """Also behind prompts in chunks, behind prefix hits, preemption, and drafts that were accepted."""
    settings = BASE | {"dtype": "float32", "max_num_batched_tokens": 24, "enable_prefix_caching": True}
    settings |= {"num_blocks": 20}
    with going_on(tiny_models("llama"), **(settings | guessing(kind, heads(kind)))) as engine:
        noted = Corrected(engine)
        plain = engine.run(greedy())
        noted.texts = [prompt + one.tokens for (prompt, _), one in zip(greedy(), plain, strict=True)]
        counted = Counted(engine)
        again = engine.run(greedy())
    assert [one.tokens for one in again] == [one.tokens for one in plain]
    assert all(one.num_cached_tokens for one in again)
    assert sum(one.num_preemptions for one in again) > 0
    assert counted.accepted > 100
    tensors, target = load(heads(kind) / "model.safetensors"), Target.of(tiny_models("llama"))
    checked = 0
    for known, params, drafts in noted.drafts[::10]:
        for place, draft in enumerate([] if counts(params) else drafts):
            logits = KINDS[kind](tensors, target, known, drafts[:place])
            assert logits[draft] > logits.max() - 1e-3, (len(known), place)
            checked += 1
    assert checked > 60


@pytest.fixture(scope="module")
def alone(tiny_models: Models) -> list[Output]:
    with LocalEngine(tiny_models("llama"), dtype="bfloat16", threads=1, **BASE) as engine:
        return [engine.run([one])[0] for one in requests()]


FAST = "prefix cache and preemption"


@pytest.mark.parametrize(
    "axis", [pytest.param(one, marks=() if one == FAST else pytest.mark.slow) for one in AXES]
)
@pytest.mark.parametrize("kind", SOME)
def test_followers_change_no_token_and_no_logprob(
    tiny_models: Models, heads: Models, alone: list[Output], kind: str, axis: str
) -> None:
    settings = BASE | {"dtype": "bfloat16"} | guessing(kind, heads(kind)) | AXES[axis]
    with going_on(tiny_models("llama"), **settings) as engine:
        counted = Counted(engine)
        together = engine.run(requests())
        same(together, alone)
    assert counted.rejected > 200
    if "preemption" in axis:
        assert sum(one.num_preemptions for one in together) > 0


@pytest.mark.parametrize("kind", SOME)
def test_drafts_depend_neither_on_company_nor_on_prefix_hits(
    tiny_models: Models, heads: Models, kind: str
) -> None:
    settings = BASE | {"dtype": "bfloat16"} | guessing(kind, heads(kind))
    found = []
    for way in ({}, {"max_num_seqs": 1}, {"enable_prefix_caching": True, "max_num_batched_tokens": 40}):
        with going_on(tiny_models("llama"), **(settings | way)) as engine:
            engine.run(requests()[:5] if len(way) > 1 else [])
            noted = Noted(engine)
            again = engine.run(requests()[:5])
        assert all(one.num_cached_tokens for one in again) == (len(way) > 1)
        found.append({tuple(known): drafts for known, _, drafts in noted.drafts})
    assert len(found[0]) > 150
    for other in found[1:]:
        both = found[0].keys() & other.keys()
        assert len(both) > 150
        assert all(_agree(found[0][known], other[known]) for known in both)


def _agree(one: list[int], other: list[int]) -> bool:
    """Where fewer pages or tokens were left, fewer are drafted."""
    least = min(len(one), len(other))
    return least > 0 and one[:least] == other[:least]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("level", ["1", "2"])
def test_followers_wake_to_the_same_drafts(tiny_models: Models, heads: Models, kind: str, level: str) -> None:
    settings = BASE | {"dtype": "float32"} | guessing(kind, heads(kind))
    with going_on(tiny_models("llama"), **settings) as engine:
        found = []
        for _ in range(2):
            noted = Noted(engine)
            answers = engine.run(requests()[:4])
            found.append((answers, sorted((known, drafts) for known, _, drafts in noted.drafts)))
            assert engine.call("sleep", level) == "ok"
            assert engine.call("wake_up", "weights", "kv_cache") == "ok"
    assert found[0] == found[1]
    assert len(found[0][1]) > 50


def planned(target: Path, kind: str, folder: Path, **fields: Any) -> None:
    settings = guessing(kind, folder) | fields
    config = EngineConfig(model=str(target), use_tqdm_on_load=False, **settings)  # type: ignore[arg-type]
    with_draft(plan_model(open_checkpoint(config, quiet), config), config, quiet)


def written(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    save(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", NAMED)
def test_a_configuration_says_what_it_is(
    tiny_models: Models, heads: Models, tmp_path: Path, kind: str
) -> None:
    named = {"architectures": [NAMED[kind]]}
    folder = written(tmp_path, KINDS[kind].config | named, KINDS[kind].tensors(drawing(0)))
    draft = DraftConfig(method="draft_model", model=str(folder))
    settings = BASE | {"dtype": "float32", "draft": draft, "num_drafts": 2}
    with going_on(tiny_models("llama"), **settings) as engine:
        noted = Noted(engine)
        engine.run(requests()[:1])
    assert max(len(drafts) for _, _, drafts in noted.drafts) == 2


@pytest.mark.torch
def test_what_transformers_runs_has_no_followers(tiny_models: Models, heads: Models) -> None:
    with pytest.raises(LoadError, match="transformers' code"):
        planned(tiny_models("gpt2"), "eagle", heads("eagle"))


def test_followers_that_do_not_fit_are_refused(tiny_models: Models, heads: Models, tmp_path: Path) -> None:
    llama, folder = tiny_models("llama"), heads("eagle")
    planned(llama, "eagle", folder)
    with pytest.raises(LoadError, match=r"no num_speculative_tokens, the most that .* guesses ahead"):
        planned(llama, "eagle", folder, num_drafts=0)
    for field, wrong, words in (
        ("hidden_size", 32, "reads rows of 32 numbers, and those of .* have 64"),
        ("vocab_size", 500, "knows 500 tokens, and .* has 512"),
        ("head_dim", 12, "has heads of 12 numbers, and the attention kernel wants a multiple of 8"),
        (
            "architectures",
            ["EagleDeepSeekMTPModel"],
            "Its layers are those of EagleDeepSeekMTPModel; of EAGLE",
        ),
    ):
        written(tmp_path, Eagle.config | {field: wrong}, {"one": np.zeros(1, np.float32)})
        with pytest.raises(LoadError, match=words):
            planned(llama, "eagle", tmp_path)
    written(tmp_path, Eagle3.config | {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, {})
    with pytest.raises(LoadError, match="before the layers 2, 16, 29 of a target, and this one has 3"):
        planned(llama, "eagle3", tmp_path)
    tensors = Eagle3().tensors(drawing(0))
    tensors["d2t"] += VOCABULARY
    written(tmp_path, Eagle3.config, tensors)
    with pytest.raises(LoadError, match=r"d2t names tokens 5.. to .*, and there are 512"):
        LocalEngine(llama, **guessing("eagle3", tmp_path))
    tensors = Eagle().tensors(drawing(0))
    del tensors["layers.0.mlp.up_proj.weight"]
    written(tmp_path, Eagle.config, tensors)
    with pytest.raises(LoadError, match=r"There is no layers\.0\.mlp\.up_proj\.weight"):
        LocalEngine(llama, **guessing("eagle", tmp_path))


def test_drafts_end_at_the_length_that_is_set(tiny_models: Models, heads: Models) -> None:
    work: list[Request] = [greedy()[0]]
    settings = BASE | {"dtype": "float32"}
    with LocalEngine(tiny_models("llama"), **settings) as engine:
        plain = engine.run(work)
    draft = guessing("eagle", heads("eagle"), max_model_len=len(work[0][0]) + 10)
    with going_on(tiny_models("llama"), **(settings | draft)) as engine:
        noted = Noted(engine)
        assert engine.run(work) == plain
    assert max(len(known) + len(drafts) for known, _, drafts in noted.drafts) == len(work[0][0]) + 11
