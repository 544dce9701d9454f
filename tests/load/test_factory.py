"""The tests' own models are what transformers would have saved: names, shapes and configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from factory import ARCHITECTURES, make_model

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "tied": ("llama", {"tie_word_embeddings": True, "dtype": "float16"}),
    "untied": ("gemma2", {"tie_word_embeddings": False, "dtype": "bfloat16"}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "dense layers": ("qwen2_moe", {"mlp_only_layers": [0], "num_hidden_layers": 4}),
    "steps": ("qwen3_moe", {"decoder_sparse_step": 2, "num_experts": 6}),
    "classes": ("llama", {"head": "ForSequenceClassification"}),
    "three classes": ("qwen3", {"head": "ForSequenceClassification", "num_labels": 3}),
    "named classes": (
        "llama",
        {"head": "ForSequenceClassification", "num_labels": 2, "id2label": {0: "bad", 1: "good"}},
    ),
    "body": ("mistral", {"head": ""}),
    "body both ways": (
        "gemma3_text",
        {"head": "", "use_bidirectional_attention": True, "sliding_window": 7},
    ),
    "body of gpt2": ("gpt2", {"head": ""}),
    "body of opt": ("opt", {"head": ""}),
    "sharded": ("llama", {"shards": 3}),
    "pickled": ("llama", {"safetensors": False}),
}


@pytest.mark.torch
@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_finds_each_weight_and_saves_the_same_configuration(
    tmp_path: Path, variant: str
) -> None:
    import transformers

    architecture, overrides = VARIANTS[variant]
    folder = make_model(architecture, tmp_path / "made", **overrides)
    head = overrides.get("head", "ForCausalLM")
    loader = getattr(transformers, f"AutoModel{head}")
    model, report = loader.from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert not any(report.values()), report
    config = json.loads((folder / "config.json").read_text())
    assert type(model).__name__ == config["architectures"][0]
    model.save_pretrained(tmp_path / "saved")
    for name in ("config.json", "generation_config.json"):
        if (tmp_path / "saved" / name).exists() or (folder / name).exists():
            saved = json.loads((tmp_path / "saved" / name).read_text())
            del saved["transformers_version"]
            assert json.loads((folder / name).read_text()) == saved
    if overrides.get("safetensors", True) and "shards" not in overrides:
        found, saved = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "saved"))
        assert {name: (one.shape, one.dtype) for name, one in found.items()} == {
            name: (one.shape, one.dtype) for name, one in saved.items()
        }
        assert all(np.array_equal(found[name], saved[name]) for name in found)


def test_a_seed_draws_the_same_weights_again_and_another_seed_others(tmp_path: Path) -> None:
    one, same, other, half = (
        load_file(make_model("qwen2", tmp_path / name, **fields) / "model.safetensors")
        for name, fields in {
            "one": {"seed": 1},
            "same": {"seed": 1},
            "other": {"seed": 2},
            "half": {"seed": 1, "dtype": "float16"},
        }.items()
    )
    for name, weights in one.items():
        assert np.array_equal(weights, same[name])
        assert np.array_equal(weights.astype(np.float16), half[name])
        assert not np.array_equal(weights, other[name])


def test_weights_are_spread_so_that_every_part_matters(tmp_path: Path) -> None:
    """Norms differ from 1 and biases from 0; the output matrix is large, the padding's embedding 0."""
    weights = load_file(make_model("qwen2", tmp_path / "qwen2") / "model.safetensors")
    spread = {name: (float(one.mean()), float(one.std())) for name, one in weights.items()}
    assert spread["model.layers.1.mlp.up_proj.weight"] == pytest.approx((0, 0.08), abs=0.005)
    assert spread["lm_head.weight"] == pytest.approx((0, 0.32), abs=0.005)
    assert spread["model.norm.weight"] == pytest.approx((1, 0.1), abs=0.05)
    assert spread["model.layers.0.self_attn.q_proj.bias"] == pytest.approx((0, 0.1), abs=0.05)
    embedding = weights["model.embed_tokens.weight"]
    assert not embedding[0].any()
    assert embedding[1:].any(axis=1).all()
    gemma = load_file(make_model("gemma2", tmp_path / "gemma2") / "model.safetensors")
    assert float(gemma["model.norm.weight"].mean()) == pytest.approx(0, abs=0.05)


def test_shards_together_are_the_whole_and_named_by_their_index(tmp_path: Path) -> None:
    whole = load_file(make_model("llama", tmp_path / "whole") / "model.safetensors")
    folder = make_model("llama", tmp_path / "cut", shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted({*index["weight_map"].values()})
    assert len(files) >= 3
    assert files == sorted(path.name for path in folder.glob("*.safetensors"))
    for file in files:
        for name, weights in load_file(folder / file).items():
            assert index["weight_map"][name] == file
            assert np.array_equal(weights, whole.pop(name))
    assert not whole


def test_layers_that_do_not_match_their_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="5 layers have 4 types"):
        make_model("gemma3_text", tmp_path, num_hidden_layers=5)
