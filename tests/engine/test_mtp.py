"""A model with layers for MTP in its checkpoint: without them it is Qwen2, and the method alone asks them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantize import quantize, recipe
from test_draft_models import Noted, going_on, quiet
from test_drafts import BASE, requests
from test_followers import greedy

from factory import make_model
from followers import EPS, HEAD_DIM, INTERMEDIATE, THETA, Mtp, Target
from local_engine import LocalEngine
from random_heads import drawing
from slipway.engine.config import DraftConfig, EngineConfig
from slipway.load.arrays import BF16
from slipway.load.checkpoint import open_checkpoint
from slipway.load.errors import LoadError
from slipway.schemes.choice import Schemes
from slipway.worker.drafts.plan import with_draft
from slipway.worker.plan import ModelPlan
from slipway.worker.planning import plan_model
from slipway_kernels.cpu import PackedCodes
from tensor_files import load, save

OWN = DraftConfig(method="mtp", model=None)
SETTINGS: dict[str, Any] = BASE | {"dtype": "float32"}
QWEN2: dict[str, Any] = {
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "rms_norm_eps": EPS,
    "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("qwen2", tmp_path_factory.mktemp("qwen2") / "model", **QWEN2)


@pytest.fixture(scope="module")
def mimo(qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Folder of the same model with so many layers for MTP."""
    root = tmp_path_factory.mktemp("mimo")

    def folder(num_layers: int) -> Path:
        place = root / str(num_layers)
        if not place.exists():
            place.mkdir()
            layers = Mtp(num_layers).tensors(drawing(num_layers))
            tensors = load(qwen2 / "model.safetensors") | layers
            save(tensors, place / "model.safetensors")
            named = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
            config = json.loads((qwen2 / "config.json").read_text()) | named
            config |= {"num_nextn_predict_layers": num_layers}
            (place / "config.json").write_text(json.dumps(config))
        return place

    return folder


def planned(target: Path, draft: DraftConfig = OWN, **fields: Any) -> ModelPlan:
    settings: dict[str, Any] = {"num_drafts": 2} | fields
    config = EngineConfig(model=str(target), use_tqdm_on_load=False, draft=draft, **settings)
    return with_draft(plan_model(open_checkpoint(config, quiet), config), config, quiet)


def test_without_its_layers_it_is_qwen2(qwen2: Path, mimo: Callable[[int], Path]) -> None:
    with LocalEngine(qwen2, **SETTINGS) as engine:
        expected = engine.run(requests())
    with LocalEngine(mimo(2), **SETTINGS) as engine:
        assert engine.run(requests()) == expected


@pytest.mark.torch
def test_the_model_draws_what_transformers_draws(qwen2: Path) -> None:
    import torch
    from transformers import Qwen2ForCausalLM

    model, (prompt, params) = Qwen2ForCausalLM.from_pretrained(qwen2), greedy()[0]
    with LocalEngine(qwen2, **SETTINGS) as engine:
        (found,) = engine.run([(prompt, params)])
    said = model.generate(
        torch.tensor([prompt]), max_new_tokens=params.max_tokens, do_sample=False, pad_token_id=0
    )
    assert found.tokens == said[0, len(prompt) :].tolist()


@pytest.mark.parametrize("num_layers", [1, 2])
def test_its_own_layers_guess_where_no_model_is_named(mimo: Callable[[int], Path], num_layers: int) -> None:
    """As many tokens as there are layers, where no number is said."""
    folder = mimo(num_layers)
    with LocalEngine(folder, **SETTINGS) as engine:
        plain = engine.run(greedy())
    with going_on(folder, **(SETTINGS | {"draft": OWN})) as engine:
        assert engine.start.config.num_drafts == num_layers
        noted = Noted(engine)
        assert engine.run(greedy()) == plain
    assert max(len(drafts) for _, _, drafts in noted.drafts) == num_layers


@pytest.mark.torch
@pytest.mark.parametrize("num_layers", [1, 2])
def test_its_own_layers_guess_what_the_definition_does(mimo: Callable[[int], Path], num_layers: int) -> None:
    from transformers import Qwen2ForCausalLM

    folder = mimo(num_layers)
    with going_on(folder, **(SETTINGS | {"draft": OWN})) as engine:
        noted = Noted(engine)
        engine.run(greedy())
    tensors = load(folder / "model.safetensors")
    target = Target(Qwen2ForCausalLM.from_pretrained(folder))
    known, _, drafts = noted.drafts[40]
    assert drafts
    for place, draft in enumerate(drafts):
        logits = Mtp(num_layers)(tensors, target, known, drafts[:place])
        assert logits[draft] > logits.max() - 1e-3


def test_quantized_layers_are_held_as_those_of_the_model(mimo: Callable[[int], Path], tmp_path: Path) -> None:
    """And in float32, where all is dequantized, they draft what plain layers of the same numbers do."""
    folder = quantize(mimo(2), tmp_path / "quantized", recipe("w8a8"))
    draft: Any = planned(folder).draft
    held = draft._tensors().linear(["mtp_layers.1.mlp.down_proj"], Schemes(BF16))
    assert isinstance(held.whole, PackedCodes)
    tensors = load(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_scale")]:
        weight = name.removesuffix("_scale")
        tensors[weight] = tensors[weight].astype(np.float32) * tensors.pop(name)
    plain = tmp_path / "plain"
    plain.mkdir()
    save(tensors, plain / "model.safetensors")
    shutil.copy(mimo(2) / "config.json", plain)
    found = []
    for place in (folder, plain):
        with going_on(place, **(SETTINGS | {"draft": OWN})) as engine:
            noted = Noted(engine)
            tokens = [one.tokens for one in engine.run(greedy()[:2])]
            found.append((tokens, noted.drafts))
    assert found[0] == found[1]
    with LocalEngine(folder, **(SETTINGS | {"dtype": "bfloat16"})) as engine:
        alone = engine.run(greedy()[:2])
    with going_on(folder, **(SETTINGS | {"dtype": "bfloat16", "draft": OWN})) as engine:
        noted = Noted(engine)
        assert engine.run(greedy()[:2]) == alone
    assert noted.drafts


def test_its_layers_are_counted_once(mimo: Callable[[int], Path]) -> None:
    plan = planned(mimo(2))
    assert plan.draft is not None
    numbers = sum(tensor.size for tensor in Mtp(2).tensors(drawing(0)).values())
    assert plan.draft.stored_bytes == numbers * plan.element.itemsize
    assert plan.draft.num_recomputed == 2


def test_a_target_that_is_named_again_is_its_own_checkpoint(mimo: Callable[[int], Path]) -> None:
    """What is overridden of its configuration counts for its layers, too."""
    named = DraftConfig(method="mtp", model=str(mimo(1)))
    planned(mimo(1), named)
    planned(mimo(2), named, hf_overrides={"num_nextn_predict_layers": 0})
    with pytest.raises(LoadError, match="has num_nextn_predict_layers 0"):
        planned(mimo(1), named, hf_overrides={"num_nextn_predict_layers": 0})


@pytest.mark.torch
def test_what_transformers_runs_has_no_such_layers(
    tiny_models: Callable[[str], Path], mimo: Callable[[int], Path]
) -> None:
    with pytest.raises(LoadError, match="transformers' code, which does not tell the rows"):
        planned(tiny_models("gpt2"), DraftConfig(method="mtp", model=str(mimo(1))))
    with pytest.raises(LoadError, match="GPT2LMHeadModel has no MTP layers that run here"):
        planned(tiny_models("gpt2"))


def test_targets_without_such_layers_are_refused(
    tiny_models: Callable[[str], Path], mimo: Callable[[int], Path], tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match="LlamaForCausalLM has no MTP layers that run here") as caught:
        planned(tiny_models("llama"))
    assert "MiMoForCausalLM" in caught.value.message
    assert "method ngram" in (caught.value.hint or "")
    for asked in ("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Qwen3NextForCausalLM"):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [asked]}))
        save({"one": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
        with pytest.raises(LoadError, match=f"{asked} has no MTP layers that run here"):
            planned(mimo(1), DraftConfig(method="mtp", model=str(tmp_path)))
    for layers in ({"num_nextn_predict_layers": 0}, {"num_nextn_predict_layers": None}):
        with pytest.raises(LoadError, match="MiMoForCausalLM has num_nextn_predict_layers 0"):
            planned(mimo(1), hf_overrides=layers)


def test_layers_that_do_not_fit_are_refused(
    tiny_models: Callable[[str], Path], mimo: Callable[[int], Path]
) -> None:
    other = DraftConfig(method="mtp", model=str(mimo(1)))
    planned(tiny_models("llama"), other)
    with pytest.raises(LoadError, match="quantization int8: heads are computed as they are stored"):
        planned(mimo(1), DraftConfig(method="mtp", model=None, quantization="int8"))
    with pytest.raises(LoadError, match=r"There is no mtp_layers\.1\.final_layernorm"):
        LocalEngine(mimo(1), draft=OWN, hf_overrides={"num_nextn_predict_layers": 2})
    with pytest.raises(LoadError, match=r"mtp_layers\.1\.\S+ has shape .*; expected: no such tensor"):
        LocalEngine(mimo(2), draft=OWN, hf_overrides={"num_nextn_predict_layers": 1})


def test_random_weights_have_random_layers(mimo: Callable[[int], Path]) -> None:
    settings = SETTINGS | {"load_format": "dummy"}
    with LocalEngine(mimo(2), **settings) as engine:
        plain = engine.run(greedy()[:2])
    with going_on(mimo(2), **(settings | {"draft": OWN})) as engine:
        noted = Noted(engine)
        assert engine.run(greedy()[:2]) == plain
    assert noted.drafts
