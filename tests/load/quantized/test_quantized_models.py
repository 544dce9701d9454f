"""Quantized checkpoints served, natively and by transformers' code, and plain ones converted on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from quantize import quantize, recipe

from factory import make_model
from model.stepping import Stepper, plan, prompt
from slipway.engine.config import EngineConfig
from slipway.load.checkpoint import open_checkpoint
from slipway.load.errors import LoadError
from slipway_kernels.cpu import packed
from tensor_files import load, numbers_of, save

METHODS = ["awq", "gptq", "gptq-asym", "w4a16", "w8a8", "fp8", "fp8-block"]
PROMPTS = {0: prompt(37), 1: prompt(5, seed=1)}


def quantized(source: Path, target: Path, method: str, **options: object) -> Path:
    how = recipe(method, **{"group": 32, **options})  # type: ignore[arg-type]
    return quantize(source, target, how)


def plain_copy(folder: Path, source: Path, target: Path) -> Path:
    """The checkpoint `folder` dequantized, with the configuration of `source`."""
    target.mkdir()
    for file in source.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    config = EngineConfig(model=str(folder), use_tqdm_on_load=False)
    tensors = dict(numbers_of(open_checkpoint(config, lambda *told: None)))
    save(tensors, target / "model.safetensors")
    return target


@pytest.mark.parametrize("method", METHODS)
def test_in_float32_a_quantized_checkpoint_is_its_dequantized_weights(
    tiny_models: Callable[[str], Path], tmp_path: Path, method: str
) -> None:
    source = tiny_models("llama")
    folder = quantized(source, tmp_path / method, method)
    plain = plain_copy(folder, source, tmp_path / "plain")
    assert Stepper(folder).greedy(PROMPTS, 6) == Stepper(plain).greedy(PROMPTS, 6)


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3_moe", "mixtral"])
def test_biases_windows_and_experts_go_with_quantized_layers(tmp_path: Path, architecture: str) -> None:
    sizes = (
        {"head_dim": 24} if architecture in ("mistral", "qwen3_moe") else {}
    )  # of which there is native code
    source = make_model(architecture, tmp_path / "source", **sizes)
    folder = quantized(source, tmp_path / "q", "gptq", group=16, act_order=True)
    plain = plain_copy(folder, source, tmp_path / "plain")
    assert Stepper(folder).greedy(PROMPTS, 6) == Stepper(plain).greedy(PROMPTS, 6)


@pytest.mark.parametrize("method", METHODS)
def test_in_bfloat16_log_probabilities_stay_close_to_the_dequantized_weights(
    tiny_models: Callable[[str], Path], tmp_path: Path, method: str
) -> None:
    source = tiny_models("llama")
    folder = quantized(source, tmp_path / method, method)
    plain = plain_copy(folder, source, tmp_path / "plain")
    found = Stepper(folder, dtype="bfloat16").greedy(PROMPTS, 1)
    expected = Stepper(plain, dtype="bfloat16").greedy(PROMPTS, 1)
    for slot in PROMPTS:
        (token, logprob), (wanted, exact) = found[slot][0], expected[slot][0]
        assert token == wanted
        assert logprob == pytest.approx(exact, abs=0.08)


def test_layers_that_were_left_alone_stand_beside_quantized_ones(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    """Queries and the gate are plain where keys, values and what the gate alternates with are not."""
    source = tiny_models("llama")
    folder = quantized(source, tmp_path / "awq", "awq")
    plain = load(source / "model.safetensors")
    tensors = load(folder / "model.safetensors")
    for name in ("self_attn.q_proj", "mlp.gate_proj"):
        layer = f"model.layers.1.{name}"
        tensors = {key: one for key, one in tensors.items() if not key.startswith(layer)}
        tensors[f"{layer}.weight"] = plain[f"{layer}.weight"]
    save(tensors, folder / "model.safetensors")
    expected = plain_copy(folder, source, tmp_path / "plain")
    assert Stepper(folder).greedy(PROMPTS, 4) == Stepper(expected).greedy(PROMPTS, 4)
    narrow, wide = (Stepper(one, dtype="bfloat16").greedy(PROMPTS, 1) for one in (folder, expected))
    for slot in PROMPTS:
        assert narrow[slot][0][0] == wide[slot][0][0]
        assert narrow[slot][0][1] == pytest.approx(wide[slot][0][1], abs=0.08)


def test_a_bias_of_zeros_beside_a_layer_without_one_is_passed_over(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = quantized(tiny_models("llama"), tmp_path / "gptq", "gptq")
    expected = Stepper(folder).greedy(PROMPTS, 3)
    file, bias = folder / "model.safetensors", "model.layers.0.self_attn.o_proj.bias"
    save(load(file) | {bias: np.zeros(64, np.float32)}, file)
    assert Stepper(folder).greedy(PROMPTS, 3) == expected
    save(load(file) | {bias: np.ones(64, np.float32)}, file)
    with pytest.raises(LoadError, match=rf"1 tensors have no place in the model: {bias}"):
        Stepper(folder)


@pytest.mark.torch
def test_transformers_code_runs_quantized_checkpoints_dequantized(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    """Also where one layer holds queries, keys and values."""
    source = tiny_models("phi3")
    folder = quantized(source, tmp_path / "awq", "awq")
    plain = plain_copy(folder, source, tmp_path / "plain")
    stepper = Stepper(folder)
    assert stepper.plan.route.spec is None
    assert any("transformers' code runs this model" in text for text in stepper.plan.warnings)
    assert stepper.greedy(PROMPTS, 4) == Stepper(plain).greedy(PROMPTS, 4)


@pytest.mark.torch
@pytest.mark.parametrize(("architecture", "model_impl"), [("llama", "auto"), ("llama", "transformers")])
def test_fp8_on_the_fly_is_the_rounded_checkpoint(
    tiny_models: Callable[[str], Path], tmp_path: Path, architecture: str, model_impl: str
) -> None:
    import torch

    from slipway.worker.device.quantized import rounded

    source, target = tiny_models(architecture), tmp_path / "rounded"

    def to_fp8(name: str, matrix: np.ndarray) -> np.ndarray:
        if "_proj" not in name:
            return matrix
        made = rounded(torch.from_numpy(matrix), torch.float8_e4m3fn, matrix.shape[1])
        return made.dequantized().numpy()

    target.mkdir()
    for file in source.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    tensors = load(source / "model.safetensors")
    save({name: to_fp8(name, tensor) for name, tensor in tensors.items()}, target / "model.safetensors")
    found = Stepper(source, quantization="fp8", model_impl=model_impl).greedy(PROMPTS, 4)
    assert found == Stepper(target, model_impl=model_impl).greedy(PROMPTS, 4)
    assert found != Stepper(source, model_impl=model_impl).greedy(PROMPTS, 4)


@pytest.mark.parametrize("name", ["int8", "int4", "experts_int8", "ptpc_fp8"])
def test_every_conversion_serves_a_mixture_of_experts(tiny_models: Callable[[str], Path], name: str) -> None:
    source = tiny_models("qwen2_moe")
    stepper = Stepper(source, quantization=name, dtype="bfloat16")
    drawn = stepper.greedy(PROMPTS, 4)
    assert drawn != Stepper(source, dtype="bfloat16").greedy(PROMPTS, 4)
    assert all(-7 < logprob <= 0 for tokens in drawn.values() for _, logprob in tokens)


def test_random_weights_can_be_converted(tiny_models: Callable[[str], Path]) -> None:
    stepper = Stepper(tiny_models("llama"), load_format="dummy", quantization="int4", dtype="bfloat16")
    assert len(stepper.greedy(PROMPTS, 2)[0]) == 2


def test_random_weights_are_not_quantized_unless_asked_and_that_is_said(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = quantized(tiny_models("llama"), tmp_path / "awq", "awq")
    assert "Random weights are plain" in warnings(folder, load_format="dummy")
    assert warnings(folder, load_format="dummy", quantization="int4") == ""


def warnings(folder: Path, **settings: object) -> str:
    return "\n".join(plan(folder, **{"dtype": "bfloat16", **settings}).warnings)


def test_what_is_dequantized_is_said_once_with_its_price(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    source = tiny_models("llama")
    ordered = quantized(source, tmp_path / "ordered", "gptq", act_order=True)
    assert warnings(ordered) == (
        "18 of 21 quantized matrices are held in bfloat16: CPU has no products for columns in an order of "
        "their own (act-order, desc_act). They take 4 times the memory of the checkpoint, and as much longer "
        "to read in each step."
    )
    assert "--dtype float32 asks for all" in warnings(ordered, dtype="float32")
    assert "They take 8 times" in warnings(ordered, dtype="float32")
    for method in ("awq", "gptq", "w4a16", "w8a8", "fp8", "fp8-block"):
        assert warnings(quantized(source, tmp_path / method, method)) == ""
    for name in ("int4", "fp8"):
        assert warnings(source, quantization=name) == ""


@pytest.mark.parametrize("method", ["fp8", "fp8-block"])
def test_fp8_takes_a_byte_for_each_weight(
    tiny_models: Callable[[str], Path], tmp_path: Path, method: str
) -> None:
    with packed() as weights:
        stepper = Stepper(quantized(tiny_models("llama"), tmp_path / method, method), dtype="bfloat16")
    kept = [weight for weight in weights if weight.dtype == "e4m3"]
    assert len(kept) == 4 * 3  # Q, K and V together, and gate and up
    assert all(weight.dtype == "bf16" for weight in weights if weight not in kept)
    del stepper


def test_measured_scales_of_activations_are_said_to_be_unused(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = quantized(tiny_models("llama"), tmp_path / "w8a8", "w8a8")
    assert "scales of activations" not in warnings(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"dynamic": true', '"dynamic": false'))
    file = folder / "model.safetensors"
    tensors = load(file)
    layers = [name.removesuffix("weight") for name in tensors if name.endswith("_proj.weight")]
    save(tensors | {f"{layer}input_scale": np.ones(1, np.float32) for layer in layers}, file)
    assert "measured scales of activations are not used: on CPU" in warnings(folder)


def test_a_name_that_contradicts_the_checkpoint_is_refused_before_weights_are_read(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = quantized(tiny_models("llama"), tmp_path / "awq", "awq")
    with pytest.raises(LoadError, match="--quantization gptq contradicts the checkpoint"):
        plan(folder, quantization="gptq")
    assert plan(folder, quantization="awq_marlin").route.spec
