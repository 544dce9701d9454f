from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factory import make_model
from model.stepping import Stepper, plan, prompt, quiet, reference_model
from slipway.engine.config import EngineConfig
from slipway.load.arrays import BF16, FP32
from slipway.load.checkpoint import open_checkpoint
from slipway.load.errors import LoadError
from slipway.model.registry import families
from slipway.model.roles import expected_shapes
from slipway.model.weights import load_weights
from slipway.schemes.choice import Schemes
from slipway.schemes.fused import GATE_ROWS, gated, stacked
from slipway.schemes.packed import CpuScheme
from tensor_files import Tensors, load, save

ARCHITECTURES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
)


def fp32() -> CpuScheme:
    return CpuScheme(FP32)


def narrow() -> CpuScheme:
    return CpuScheme(BF16)


def change(folder: Path, edit: Callable[[Tensors], object]) -> Path:
    """Save the folder's weights again after `edit`."""
    tensors = load(folder / "model.safetensors")
    edit(tensors)
    save(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.torch
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_reference_computes_what_transformers_does(
    tiny_models: Callable[[str], Path], architecture: str
) -> None:
    import torch

    from model.reference import read_reference

    folder = tiny_models(architecture)
    checkpoint = open_checkpoint(EngineConfig(model=str(folder), use_tqdm_on_load=False), quiet)
    family = families()[checkpoint.config["architectures"][0]]  # type: ignore[index]
    reference = read_reference(family.spec(checkpoint.config), checkpoint, FP32)
    tokens = torch.tensor(prompt(60))
    with torch.inference_mode():
        expected = reference_model(folder)(tokens[None]).logits[0]
    torch.testing.assert_close(reference.logits(tokens), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_expected_shapes_are_those_of_the_checkpoint(
    tiny_models: Callable[[str], Path], architecture: str
) -> None:
    folder = tiny_models(architecture)
    config = json.loads((folder / "config.json").read_text())
    family = families()[config["architectures"][0]]
    stored = load(folder / "model.safetensors")
    found = expected_shapes(family.spec(config), family)
    assert found == {name: tuple(tensor.shape) for name, tensor in stored.items()}


@pytest.mark.torch
@pytest.mark.parametrize("architecture", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_stacked_experts_load_as_single_ones_do(tmp_path: Path, architecture: str) -> None:
    sizes: dict[str, Any] = {"head_dim": 24} if architecture == "qwen3_moe" else {}
    folder = make_model(architecture, tmp_path / "single", **sizes)
    model = reference_model(folder)
    model.save_pretrained(tmp_path / "stacked", save_original_format=False)
    names = load(tmp_path / "stacked" / "model.safetensors")
    assert "model.layers.0.mlp.experts.gate_up_proj" in names
    tokens = {0: prompt(20)}
    assert Stepper(tmp_path / "stacked").greedy(tokens, 4) == Stepper(folder).greedy(tokens, 4)


def test_a_missing_and_a_stray_tensor_are_named(tmp_path: Path) -> None:
    def edit(tensors: Tensors) -> None:
        del tensors["model.layers.2.self_attn.k_proj.weight"]
        tensors["model.layers.9.extra"] = np.zeros(3, np.float32)

    folder = change(make_model("llama", tmp_path), edit)
    with pytest.raises(LoadError) as refused:
        Stepper(folder)
    assert "missing: model.layers.2.self_attn.k_proj.weight" in refused.value.message
    assert "no place in the model: model.layers.9.extra" in refused.value.message


def test_a_long_list_of_names_is_cut_and_counted(tmp_path: Path) -> None:
    folder = change(
        make_model("llama", tmp_path), lambda tensors: [tensors.pop(n) for n in list(tensors)[:9]]
    )
    with pytest.raises(LoadError, match=r"9 tensors are missing: .* and 4 more"):
        Stepper(folder)


def test_a_tensor_of_another_shape_is_named_with_both(tmp_path: Path) -> None:
    folder = make_model("llama", tmp_path)
    with pytest.raises(LoadError, match=r"has the shape \[64, 96\], and config.json asks for \[64, 80\]"):
        Stepper(folder, hf_overrides={"intermediate_size": 80})


def test_a_tied_head_may_be_stored_and_is_held_once(tmp_path: Path) -> None:
    def edit(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)

    folder = change(make_model("llama", tmp_path, tie_word_embeddings=True), edit)
    found = plan(folder)
    assert found.route.spec is not None
    family = families()[found.route.architecture]
    weights = load_weights(found.route.spec, family, found.checkpoint, Schemes(FP32))
    assert weights.head is weights.embedding


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    folder = change(make_model("llama", tmp_path), lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(LoadError, match=r"missing: lm_head\.weight"):
        Stepper(folder)


def test_gate_and_up_alternate_by_sixteen_rows_and_are_padded_with_zeros() -> None:
    gate, up = np.random.default_rng(0).standard_normal((2, 40, 8), np.float32)
    fused = gated(8, {"gate": 40, "up": 40}, {"gate": fp32, "up": fp32})
    fused.load("gate", gate)
    fused.load("up", up)
    assert fused.n == 96
    rows = fused.parts[0].scheme.rows(np.arange(96)).reshape(3, 2, GATE_ROWS, 8)
    padded = np.zeros((2, 48, 8), np.float32)
    padded[0, :40], padded[1, :40] = gate, up
    assert np.array_equal(rows, padded.reshape(2, 3, GATE_ROWS, 8).swapaxes(0, 1))


def test_gate_and_up_of_two_schemes_are_two_products() -> None:
    fused = gated(8, {"gate": 40, "up": 40}, {"gate": fp32, "up": narrow})
    assert [(part.column, part.end) for part in fused.parts] == [(0, 40), (40, 80)]


def test_segments_of_one_scheme_are_one_product_and_others_their_own() -> None:
    drawn = np.random.default_rng(0)
    other = [drawn.standard_normal((rows, 8), np.float32) for rows in (5, 7, 3)]
    sizes = {"q": 5, "k": 7, "v": 3}
    one = stacked(8, sizes, dict.fromkeys(sizes, fp32), bias=True)
    assert [part.column for part in one.parts] == [0]
    two = stacked(8, sizes, {"q": fp32, "k": narrow, "v": narrow}, bias=True)
    assert [part.column for part in two.parts] == [0, 5]
    x, bias = drawn.standard_normal((4, 8), np.float32), drawn.standard_normal(15, np.float32)
    for fused in (one, two):
        for name, matrix, piece in zip("qkv", other, np.split(bias, [5, 12]), strict=True):
            fused.load(name, matrix)
            fused.load(name, piece)
    expected = x @ np.concatenate(other).T + bias
    for fused, tolerance in ((one, 1e-5), (two, 0.05)):
        results = [part.scheme.apply(x, piece) for part, piece in fused.products()]
        np.testing.assert_allclose(np.concatenate(results, axis=1), expected, rtol=tolerance, atol=tolerance)
