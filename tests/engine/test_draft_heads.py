"""Heads on the target's hidden states: output is the same to the bit, each draft is that of torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_draft_models import Noted, counts, going_on, quiet
from test_drafts import AXES, BASE, requests, same
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from counted import Counted
from factory import VOCABULARY
from local_engine import LocalEngine, Output
from slipway.engine.config import DraftConfig, EngineConfig
from slipway.load.checkpoint import open_checkpoint
from slipway.load.errors import LoadError
from slipway.worker.drafts.plan import with_draft
from slipway.worker.plan import plan_model

HIDDEN, HEADS = 64, 4
Tensors = dict[str, Tensor]
Reference = Callable[[Tensors, Tensor, list[int]], Tensor]
"""Of the target's last hidden state [hidden] and the tokens behind it, logits of what follows these."""


def random(*shape: int, scale: float = 0.1) -> Tensor:
    return torch.randn(shape) * scale


def medusa_tensors(config: dict[str, Any]) -> Tensors:
    tensors: Tensors = {}
    for head in range(HEADS):
        for layer in range(config["num_hidden_layers"]):
            tensors[f"blocks.{head}.layers.{layer}.weight"] = random(HIDDEN, HIDDEN)
            if config.get("medusa_fc_bias"):
                tensors[f"blocks.{head}.layers.{layer}.bias"] = random(HIDDEN)
        if not config.get("original_lm_head") or head == 0:
            tensors[f"lm_heads.{head}.weight"] = random(VOCABULARY, HIDDEN)
    return tensors


def medusa(tensors: Tensors, hidden: Tensor, said: list[int]) -> Tensor:
    head, x = len(said) - 1, hidden
    layer = 0
    while f"blocks.{head}.layers.{layer}.weight" in tensors:
        name = f"blocks.{head}.layers.{layer}"
        bias = tensors.get(f"{name}.bias")
        x = x + functional.silu(functional.linear(x, tensors[f"{name}.weight"], bias))
        layer += 1
    return tensors.get(f"lm_heads.{head}.weight", tensors["lm_heads.0.weight"]) @ x


def speculator_tensors(config: dict[str, Any]) -> Tensors:
    inner = config["inner_dim"] or HIDDEN
    tensors: Tensors = {}
    for head in range(1 if config["tie_weights"] else HEADS):
        tensors[f"speculator.emb.{head}.weight"] = random(VOCABULARY, inner)
        tensors[f"speculator.head.{head}.weight"] = random(VOCABULARY, inner)
        tensors[f"speculator.ln.{head}.weight"] = 1 + random(inner)
        tensors[f"speculator.ln.{head}.bias"] = random(inner)
    for head in range(2 if config["tie_weights"] else HEADS):
        tensors[f"speculator.proj.{head}.weight"] = random(inner, inner if head else HIDDEN)
    return tensors


def speculator(tensors: Tensors, hidden: Tensor, said: list[int]) -> Tensor:
    tied = "speculator.emb.1.weight" not in tensors
    state, logits = hidden, hidden
    if tied:  # which of the two has its input normed is of no matter
        state = state / torch.sqrt((state**2).mean() + 1e-6) / math.sqrt(2)
    for head, token in enumerate(said):
        own = 0 if tied else head

        def tensor(kind: str, number: int = own, part: str = "weight") -> Tensor:
            return tensors[f"speculator.{kind}.{number}.{part}"]

        kept = 0.5 ** (0.5 / HEADS)
        weight = math.sqrt((1 - kept**2) * (len(tensor("ln")) / 2)) / kept
        state = tensor("proj", min(head, 1) if tied else head) @ state + weight * tensor("emb")[token]
        state = state / torch.sqrt((state**2).mean() + 1e-6) * tensor("ln") + tensor("ln", part="bias")
        state = functional.gelu(state)
        logits = tensor("head") @ state
    return logits


MEDUSA = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": HIDDEN, "num_heads": HEADS}
MEDUSA |= {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "medusa_fc_bias": True}
ONE_MATRIX = MEDUSA | {"num_hidden_layers": 1, "original_lm_head": True, "medusa_fc_bias": False}
MLP = {"model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": HIDDEN}
MLP |= {
    "inner_dim": 48,
    "vocab_size": VOCABULARY,
    "n_predict": HEADS,
    "tie_weights": True,
    "scale_input": True,
}
UNTIED = MLP | {"inner_dim": 0, "tie_weights": False, "scale_input": False}
KINDS: dict[str, tuple[str, dict[str, Any], Callable[[dict[str, Any]], Tensors], Reference]] = {
    "medusa": ("medusa", MEDUSA, medusa_tensors, medusa),
    "medusa with one matrix": ("medusa", ONE_MATRIX, medusa_tensors, medusa),
    "mlp speculator": ("mlp_speculator", MLP, speculator_tensors, speculator),
    "mlp speculator without ties": ("mlp_speculator", UNTIED, speculator_tensors, speculator),
}


def write_heads(kind: str, place: Path) -> Path:
    """A random checkpoint of a kind."""
    torch.manual_seed(len(kind))
    place.mkdir()
    _, config, tensors, _ = KINDS[kind]
    (place / "config.json").write_text(json.dumps(config))
    save_file(tensors(config), place / "model.safetensors")
    return place


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a random checkpoint of a kind."""
    root = tmp_path_factory.mktemp("heads")

    def folder(kind: str) -> Path:
        place = root / kind
        return place if place.exists() else write_heads(kind, place)

    return folder


def guessing(kind: str, folder: Path) -> dict[str, object]:
    return {"draft": DraftConfig(method=KINDS[kind][0], model=str(folder)), "num_drafts": HEADS}


@pytest.mark.parametrize("kind", KINDS)
def test_each_draft_is_that_of_torch(
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
    tensors = load_file(heads(kind) / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(tiny_models("llama"))
    states: dict[tuple[int, ...], Tensor] = {}  # of the longest texts; the others begin them
    checked = 0
    with torch.inference_mode():
        for known, params, drafts in sorted(noted.drafts, key=lambda one: -len(one[0])):
            if counts(params):
                continue
            text = next((text for text in states if list(text[: len(known)]) == known), tuple(known))
            if text not in states:
                states[text] = model.model(torch.tensor([known])).last_hidden_state[0]
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


def test_heads_that_do_not_fit_are_refused(
    tiny_models: Callable[[str], Path], heads: Callable[[str], Path], tmp_path: Path
) -> None:
    llama, folder = tiny_models("llama"), heads("medusa")
    planned(llama, "medusa", folder)
    with pytest.raises(LoadError, match=r"5 drafts are asked for, and .* has heads for 4"):
        planned(llama, "medusa", folder, num_drafts=5)
    with pytest.raises(LoadError, match="transformers' code"):
        planned(tiny_models("gpt2"), "medusa", folder)
    for field, wrong, words in (
        ("hidden_size", 32, "reads rows of 32 numbers, and those of .* have 64"),
        ("vocab_size", 500, "knows 500 tokens, and .* has 512"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(MEDUSA | {field: wrong}))
        save_file({"one": torch.zeros(1)}, tmp_path / "model.safetensors")
        with pytest.raises(LoadError, match=words):
            planned(llama, "medusa", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MEDUSA))
    with pytest.raises(LoadError, match=r"one has shape \[1\]; expected: no such tensor"):
        LocalEngine(llama, **guessing("medusa", tmp_path))
    tensors = medusa_tensors(MEDUSA)
    del tensors["lm_heads.3.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=r"There is no lm_heads\.3\.weight"):
        LocalEngine(llama, **guessing("medusa", tmp_path))
