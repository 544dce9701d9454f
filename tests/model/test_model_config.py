from __future__ import annotations

from typing import Any

import pytest

from slipway.load.config import merged
from slipway.load.errors import LoadError
from slipway.model.registry import families
from slipway.model.spec import DecoderSpec, Mlp, Moe

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}

ELSEWHERE = {"MiMoForCausalLM": "Qwen2ForCausalLM"}
"""Of a class that comes with its checkpoints: the one of transformers whose configuration it has."""


def spec(architecture: str, **fields: Any) -> DecoderSpec:
    config = {**LLAMA, "architectures": [architecture], **fields}
    return families()[architecture].spec(config)


def windows(found: DecoderSpec) -> list[int]:
    return [layer.attention.window for layer in found.layers]


def test_all_families_are_found() -> None:
    assert set(families()) == {
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3TextModel",
        "LlamaForCausalLM",
        "MiMoForCausalLM",
        "MinistralForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    }


@pytest.mark.torch
@pytest.mark.parametrize("architecture", sorted(families()))
def test_a_sparse_configuration_means_what_transformers_takes_it_for(architecture: str) -> None:
    """What config.json leaves out has transformers' default, so that its full form gives the same model."""
    import transformers

    sparse = {**LLAMA, "architectures": [architecture], "moe_intermediate_size": 48}
    kind = getattr(transformers, ELSEWHERE.get(architecture, architecture)).config_class
    full = kind(**{name: value for name, value in sparse.items() if name != "architectures"}).to_dict()
    full["architectures"] = [architecture]
    built, expected = families()[architecture].spec(sparse), families()[architecture].spec(full)
    assert built.layers == expected.layers
    assert (built.tied_embedding, built.norm_eps, built.max_position, built.logit_softcap) == (
        expected.tied_embedding,
        expected.norm_eps,
        expected.max_position,
        expected.logit_softcap,
    )


def test_qwen2_ignores_its_window_unless_asked_to_use_it() -> None:
    assert windows(spec("Qwen2ForCausalLM", sliding_window=32)) == [0] * 6
    used = spec("Qwen2ForCausalLM", sliding_window=32, use_sliding_window=True, max_window_layers=4)
    assert windows(used) == [0, 0, 0, 0, 32, 32]


def test_gemma3_takes_its_pattern_from_a_number_or_a_list() -> None:
    by_number = spec("Gemma3ForCausalLM", sliding_window=32, sliding_window_pattern=3)
    assert windows(by_number) == [32, 32, 0, 32, 32, 0]
    kinds = ["full_attention", *["sliding_attention"] * 5]
    assert windows(spec("Gemma3ForCausalLM", sliding_window=32, layer_types=kinds)) == [0, *[32] * 5]


def test_gemma_scales_scores_by_a_field_of_its_own() -> None:
    found = spec("Gemma2ForCausalLM", query_pre_attn_scalar=144, head_dim=32)
    assert found.layers[0].attention.scale == pytest.approx(1 / 12)
    assert found.embedding_scale == 8.0
    assert (found.layers[0].attention.softcap, found.logit_softcap) == (50.0, 30.0)


def test_qwen_moe_has_plain_layers_where_the_configuration_says_so() -> None:
    found = spec("Qwen2MoeForCausalLM", decoder_sparse_step=2, mlp_only_layers=[3], moe_intermediate_size=48)
    assert [type(layer.mlp) for layer in found.layers] == [Mlp, Moe, Mlp, Mlp, Mlp, Moe]


def test_a_missing_field_is_named() -> None:
    config = {name: value for name, value in LLAMA.items() if name != "hidden_size"}
    with pytest.raises(LoadError, match=r"no hidden_size"):
        families()["LlamaForCausalLM"].spec(config)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("num_attention_heads", "four", "num_attention_heads .* is 'four', and must be a whole number"),
        ("num_hidden_layers", 0, "num_hidden_layers .* is 0, and must be a whole number above 0"),
        ("num_key_value_heads", 3, "4 attention heads cannot share 3"),
        ("hidden_act", "relu6", "activation 'relu6' has no kernel"),
        ("attention_bias", 1, "attention_bias .* must be true or false"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(field: str, value: object, sentence: str) -> None:
    with pytest.raises(LoadError, match=sentence):
        spec("LlamaForCausalLM", **{field: value})


def test_layer_types_must_cover_every_layer() -> None:
    with pytest.raises(LoadError, match=r"names 1 layers of 6, some of them spiral"):
        spec("Gemma2ForCausalLM", layer_types=["spiral"])


def test_overrides_merge_objects_field_by_field() -> None:
    config = {"a": 1, "nested": {"x": 1, "y": {"z": 2}}}
    found = merged(config, {"nested": {"y": {"w": 3}}, "b": None}, {}, None)
    assert found == {"a": 1, "nested": {"x": 1, "y": {"z": 2, "w": 3}}, "b": None}
    assert config["nested"] == {"x": 1, "y": {"z": 2}}
