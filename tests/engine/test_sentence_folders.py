"""Folders of sentence-transformers: what they say of pooling is done as it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_pooling import PROMPTS, engine, refusal, rows_of

from factory import make_model


def sentence_model(
    folder: Path,
    pooling: str,
    *dense: torch.nn.Linear,
    architecture: str = "qwen3",
    head: str = "",
    **overrides: Any,
) -> Path:
    """A decoder with the files that sentence-transformers writes beside it; layers with a bias end in
    tanh."""
    make_model(architecture, folder, head=head, head_dim=24, **overrides)
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), "Normalize"]
    places = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds[1:], 1))]
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    modules = [{"path": place, "type": type} for place, type in zip(places, types, strict=True)]
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": 64, pooling: True},
        "sentence_bert_config.json": {"max_seq_length": 100, "do_lower_case": False},
    }
    for place, layer in zip(places[2:], dense, strict=False):
        (folder / place).mkdir()
        parts = {f"linear.{name}": part.detach() for name, part in layer.state_dict().items()}
        save_file(parts, folder / place / "model.safetensors")
        biased = layer.bias is not None
        files[f"{place}/config.json"] = {
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "bias": biased,
            "activation_function": f"torch.nn.modules.{'activation.Tanh' if biased else 'linear.Identity'}",
        }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def test_a_folder_of_sentence_transformers_is_read_as_it_is(tmp_path: Path) -> None:
    layer = torch.nn.Linear(64, 24)
    folder = sentence_model(tmp_path / "model", "pooling_mode_mean_tokens", layer)
    with engine(folder, task="auto", max_model_len=None) as pooling:
        ready = pooling.start.ready()
        found = pooling.pool(PROMPTS)
    assert ready.max_model_len == 100
    assert ready.pools is not None
    assert (ready.pools.task, ready.pools.dimensions) == ("embed", 24)
    for prompt, vector in zip(PROMPTS, found, strict=True):
        wanted = torch.tanh(layer(rows_of(folder, prompt).mean(0))).detach()
        wanted = torch.nn.functional.normalize(wanted, dim=0)
        torch.testing.assert_close(torch.from_numpy(vector[0].copy()), wanted, atol=1e-4, rtol=1e-4)


def as_newer_releases_write_it(folder: Path) -> None:
    """With the fields that sentence-transformers has now, and without what is its default."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.sentence_transformer.modules.{kind.lower()}.{kind}"
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    dense = json.loads((folder / "2_Dense" / "config.json").read_text())
    del dense["activation_function"]
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"embedding_dimension": 64, "pooling_mode": "mean", "include_prompt": True},
        "2_Dense/config.json": dense | {"use_residual": False},
        "sentence_bert_config.json": {"transformer_task": "feature-extraction"},
        "tokenizer_config.json": tokenizer | {"model_max_length": 95},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def test_what_newer_releases_write_means_the_same(tmp_path: Path) -> None:
    folder = sentence_model(tmp_path, "pooling_mode_mean_tokens", torch.nn.Linear(64, 24))
    with engine(folder, task="auto", max_model_len=None) as pooling:
        wanted = pooling.pool(PROMPTS[:2])
    as_newer_releases_write_it(folder)
    with engine(folder, task="auto", max_model_len=None) as pooling:
        assert pooling.start.ready().max_model_len == 95
        assert all(map(np.array_equal, pooling.pool(PROMPTS[:2]), wanted))


def test_modules_that_would_be_computed_otherwise_are_refused(tmp_path: Path) -> None:
    folder = sentence_model(tmp_path, "pooling_mode_mean_tokens", torch.nn.Linear(64, 64))
    dense = folder / "2_Dense" / "config.json"
    plain = dense.read_text()
    dense.write_text(json.dumps(json.loads(plain) | {"use_residual": True}))
    assert "use_residual" in refusal(folder, task="auto", max_model_len=None)
    dense.write_text(plain)
    modules = folder / "modules.json"
    transformer, pooled, layer, norm = json.loads(modules.read_text())
    for order in ([transformer, layer, pooled, norm], [transformer, pooled, norm, layer]):
        modules.write_text(json.dumps(order))
        assert "has a module Dense" in refusal(folder, task="auto", max_model_len=None)


@pytest.mark.parametrize(("architecture", "head"), [("qwen3", "ForCausalLM"), ("mistral", "")])
def test_models_that_embed_by_their_last_token_are_read_as_they_are(
    tmp_path: Path, architecture: str, head: str
) -> None:
    """As Qwen3-Embedding and E5-Mistral are published."""
    names = {"architecture": architecture, "head": head}
    folder = sentence_model(tmp_path / "model", "pooling_mode_lasttoken", **names)
    with engine(folder, task="auto", max_model_len=None) as pooling:
        found = pooling.pool(PROMPTS[:3])
    for prompt, vector in zip(PROMPTS, found, strict=False):
        wanted = torch.nn.functional.normalize(rows_of(folder, prompt)[-1:])
        torch.testing.assert_close(torch.from_numpy(vector.copy()), wanted, atol=1e-4, rtol=1e-4)


def test_another_mode_is_refused_where_a_vector_is_asked_for(tmp_path: Path) -> None:
    weighted = sentence_model(tmp_path, "pooling_mode_weightedmean_tokens")
    engine(weighted, task="reward")  # for which the file says nothing
    assert "asks for weightedmean" in refusal(weighted, task="auto")
