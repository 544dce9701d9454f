"""A KV cache of eight bits under whole models: its size, its error, its scales."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.stepping import Stepper, plan, prompt
from slipway.load.arrays import BF16, E4M3, E5M2, INT8
from slipway.load.errors import LoadError
from slipway.load.quantized.kv_scales import scales_of_file

PROMPTS = {0: prompt(60), 1: prompt(9, seed=6)}
TYPES = {"fp8": E4M3, "fp8_e4m3": E4M3, "fp8_e5m2": E5M2}
INTEGERS = "int8_per_token_head"


@pytest.mark.parametrize("name", TYPES)
def test_pages_are_half_of_bfloat16s(tiny_models: Callable[[str], Path], name: str) -> None:
    folder = tiny_models("llama")
    wide, narrow = plan(folder, dtype="bfloat16"), plan(folder, dtype="bfloat16", kv_cache_dtype=name)
    assert narrow.kv_dtype == TYPES[name]
    assert wide.kv_dtype == BF16
    assert narrow.kv.page_bytes * 2 == wide.kv.page_bytes


def test_integers_bring_their_scales_and_take_no_others(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = {"dtype": "bfloat16", "kv_cache_dtype": INTEGERS}
    path = scale_file(tmp_path / "scales.json", {"0": {"0": 8.0}})
    found = plan(tiny_models("llama"), **settings, quantization_param_path=path, calculate_kv_scales=True)
    assert found.kv_dtype == INT8
    assert found.kv_scales == {}
    assert found.kv_divisors is None
    with pytest.raises(LoadError, match="int8_per_token_head has kernels on CPU only"):
        plan(tiny_models("llama"), **settings, device="cuda")


def kept(x: Any, name: str) -> Any:
    """As the cache gives it back: integers are those of each head's row."""
    from slipway.load.torch_arrays import torch_type

    if name == INTEGERS:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round() * scale
    return x.to(torch_type(TYPES[name])).float()


def attend_rounded(
    module: Any, query: Any, key: Any, value: Any, mask: Any, *, scaling: float, **settings: Any
) -> tuple[Any, None]:
    """transformers' attention over keys and values that were kept in eight bits."""
    import torch

    name = module.config.kv_cache_dtype
    keys, values = (kept(x, name).repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, is_causal=True, scale=scaling
    )  # [1, heads, rows, head_dim]
    return out.transpose(1, 2), None


@pytest.mark.torch
@pytest.mark.parametrize("model_impl", ["auto", "transformers"])
@pytest.mark.parametrize("name", [*TYPES, INTEGERS])
def test_attention_sees_rounded_keys_and_values_and_nothing_else_is_rounded(
    tiny_models: Callable[[str], Path], name: str, model_impl: str
) -> None:
    import torch
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register("rounded", attend_rounded)
    folder = tiny_models("llama")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="rounded")
    model.config.kv_cache_dtype = name
    drawn = Stepper(folder, kv_cache_dtype=name, model_impl=model_impl).greedy(PROMPTS, 1)
    plain = Stepper(folder, model_impl=model_impl).greedy(PROMPTS, 1)
    for slot, tokens in PROMPTS.items():
        with torch.inference_mode():
            expected = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        ((token, logprob),) = drawn[slot]
        assert token == expected.argmax()
        error = 5e-3 if name in TYPES else 2e-4
        assert logprob == pytest.approx(float(expected[token]), abs=error)
        assert logprob != pytest.approx(plain[slot][0][1], abs=error)


def scale_file(place: Path, factors: object) -> str:
    place.write_text(json.dumps({"model_type": "llama", "kv_cache": {"scaling_factor": factors}}))
    return str(place)


def test_scales_of_a_file_reach_every_layer(tiny_models: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_models("llama")
    ones = scale_file(tmp_path / "ones.json", {"0": {"0": 1.0, "1": 1.0, "2": 1.0}})
    plain = Stepper(folder, kv_cache_dtype="fp8").greedy(PROMPTS, 4)
    settings = {"kv_cache_dtype": "fp8", "quantization_param_path": ones}
    assert Stepper(folder, **settings).greedy(PROMPTS, 4) == plain
    for layer in "012":  # so large a scale that nothing but zeros is left of the layer
        large = scale_file(tmp_path / "large.json", {"0": {layer: 1e6}})
        assert (
            Stepper(folder, kv_cache_dtype="fp8", quantization_param_path=large).greedy(PROMPTS, 4) != plain
        )


def test_without_an_fp8_cache_scales_are_not_used(tiny_models: Callable[[str], Path], tmp_path: Path) -> None:
    path = scale_file(tmp_path / "scales.json", {"0": {"0": 8.0}})
    assert plan(tiny_models("llama"), quantization_param_path=path).kv_scales == {}
    used = plan(tiny_models("llama"), quantization_param_path=path, kv_cache_dtype="fp8")
    assert used.kv_scales == {0: (8.0, 8.0)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "cannot be used: .* holds a JSON list instead of an object"),
        ("{}", "has no kv_cache.scaling_factor for rank 0"),
        ('{"kv_cache": {"scaling_factor": {"1": {}}}}', "has no kv_cache.scaling_factor for rank 0"),
        (
            '{"kv_cache": {"scaling_factor": {"0": {"0": 0}}}}',
            "gives the layer '0' the factor 0, which must be above 0",
        ),
        ('{"kv_cache": {"scaling_factor": {"0": {"a": 1}}}}', "gives the layer 'a' the factor 1"),
    ],
)
def test_a_file_of_scales_that_makes_no_sense_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "scales.json"
    path.write_text(content)
    with pytest.raises(LoadError, match=message) as caught:
        scales_of_file(str(path))
    assert caught.value.argument == "quantization_param_path"


def test_a_scale_for_a_layer_that_is_not_there_is_refused(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    path = scale_file(tmp_path / "scales.json", {"0": {"7": 1.0}})
    with pytest.raises(LoadError, match="are given for layer 7; the model has 3 layers"):
        plan(tiny_models("llama"), kv_cache_dtype="fp8", quantization_param_path=path)


def test_an_unknown_type_is_refused(tiny_models: Callable[[str], Path]) -> None:
    with pytest.raises(LoadError, match=r"--kv-cache-dtype int8 is not a type .* Use auto, fp8, fp8_e4m3"):
        plan(tiny_models("llama"), kv_cache_dtype="int8")
