from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from slipway.load.config import merged
from slipway.load.errors import LoadError
from slipway.model.rope import cos_sin, inverse_frequencies, length_warning, rope
from slipway.model.spec import Rope

SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "vocab_size": 32,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "theta": {"rope_theta": 5e5},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn_tuned": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn_attention": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
        "truncate": False,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 16 for i in range(16)],
        "long_factor": [2.0 + i for i in range(16)],
        "original_max_position_embeddings": 256,
    },
    "longrope_factor": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 16,
        "long_factor": [4.0] * 16,
        "factor": 8.0,
        "attention_factor": 1.1,
        "original_max_position_embeddings": 256,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}


def reference(scaling: dict[str, Any], max_len: int) -> tuple[np.ndarray, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_theta": 1e4, "rope_type": "default", **scaling}
    config = LlamaConfig(**SIZES, max_position_embeddings=512, rope_parameters=parameters)
    compute = ROPE_INIT_FUNCTIONS.get(
        parameters["rope_type"], LlamaRotaryEmbedding.compute_default_rope_parameters
    )
    frequencies, factor = compute(config, device=None, seq_len=max_len)
    return frequencies.numpy(), factor


@pytest.mark.torch
@pytest.mark.parametrize("max_len", [200, 700])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_and_factor_are_those_of_transformers(name: str, max_len: int) -> None:
    config = {**SIZES, "max_position_embeddings": 512, "rope_parameters": SCALINGS[name]}
    frequencies, factor = inverse_frequencies(rope(config, 32), max_len)
    expected, expected_factor = reference(SCALINGS[name], max_len)
    np.testing.assert_allclose(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-6)


@pytest.mark.parametrize("name", SCALINGS)
def test_the_older_spelling_means_the_same(name: str) -> None:
    scaling = dict(SCALINGS[name])
    theta = scaling.pop("rope_theta", 1e4)
    if "rope_type" in scaling:
        scaling["type"] = scaling.pop("rope_type")
    sizes = {**SIZES, "max_position_embeddings": 512}
    old = rope({**sizes, "rope_theta": theta, "rope_scaling": scaling or None}, 32)
    assert old == rope({**sizes, "rope_parameters": SCALINGS[name]}, 32)


@pytest.mark.torch
def test_the_table_holds_cosine_and_sine_of_every_position_with_the_attention_factor() -> None:
    config = {**SIZES, "max_position_embeddings": 512, "rope_parameters": SCALINGS["yarn_attention"]}
    table = cos_sin(rope(config, 32), 300)
    frequencies, factor = reference(SCALINGS["yarn_attention"], 300)
    angles = np.outer(np.arange(300.0), frequencies)
    assert table.shape == (300, 16, 2)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table[..., 0], np.cos(angles) * factor, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(table[..., 1], np.sin(angles) * factor, rtol=1e-5, atol=1e-5)


def test_cosines_and_sines_are_the_nearest_that_fp32_has() -> None:
    """Of the angle as fp32 has it, however large."""
    plain = Rope(1e4, 32)
    frequencies, _ = inverse_frequencies(plain, 50_000)
    table = cos_sin(plain, 50_000)
    for position in (1, 777, 49_999):
        for pair, frequency in enumerate(frequencies):
            angle = float(np.float32(position) * frequency)
            assert table[position, pair, 0] == np.float32(math.cos(angle))
            assert table[position, pair, 1] == np.float32(math.sin(angle))


def test_a_table_for_more_positions_starts_with_the_same_rows_where_length_does_not_choose() -> None:
    for name in ("default", "linear", "yarn", "llama3"):
        config = {**SIZES, "max_position_embeddings": 512, "rope_parameters": SCALINGS[name]}
        assert np.array_equal(cos_sin(rope(config, 32), 64), cos_sin(rope(config, 32), 512)[:64])


def test_a_model_may_rotate_a_part_of_each_head() -> None:
    config = {**SIZES, "max_position_embeddings": 512, "partial_rotary_factor": 0.5}
    assert cos_sin(rope(config, 32), 8).shape == (8, 8, 2)


def test_local_and_global_layers_have_their_own_rotation_in_both_spellings() -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": linear}
    new = {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, **linear},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        }
    }
    for config in (old, new):
        wide = rope(config, 32, "full_attention", default_theta=1e6)
        near = rope(config, 32, "sliding_attention", theta_field="rope_local_base_freq")
        assert (wide.theta, wide.scaling["factor"]) == (1e6, 8.0)
        assert (near.theta, near.scaling) == (1e4, {})


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("by_override", [False, True])
def test_rope_arguments_replace_the_models_own(spelling: str, by_override: bool) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    own = {"rope_theta": 5e5, **SCALINGS["llama3"]} if spelling == "rope_parameters" else SCALINGS["llama3"]
    config = {**SIZES, "rope_theta": 5e5, "max_position_embeddings": 512, spelling: own}
    given: dict[str, Any] = {"rope_scaling": yarn, "rope_theta": 7e5}
    found = merged(config, given, {}, None) if by_override else merged(config, {}, yarn, 7e5)
    rotation = rope(found, 32)
    assert rotation.theta == 7e5
    assert rotation.scaling == yarn
    only_scaling = merged(config, {}, yarn, None)
    assert rope(only_scaling, 32).theta == 5e5


def test_an_unknown_scaling_is_refused_with_those_that_exist() -> None:
    with pytest.raises(LoadError, match=r"scaling 'spiral' is not supported.*linear, dynamic"):
        rope({**SIZES, "rope_scaling": {"rope_type": "spiral"}}, 32)


def test_longrope_without_a_divisor_for_each_pair_is_refused() -> None:
    scaling = {**SCALINGS["longrope"], "long_factor": [1.0, 2.0]}
    config = {**SIZES, "max_position_embeddings": 512, "rope_parameters": scaling}
    with pytest.raises(LoadError, match=r"needs 16 numbers in long_factor.*has 2"):
        cos_sin(rope(config, 32), 512)


def test_a_length_that_changes_short_requests_is_said() -> None:
    config = {"max_position_embeddings": 512, "rope_parameters": SCALINGS["longrope"]}
    assert length_warning(config, 256) == ""
    assert "up to 256 tokens" in length_warning(config, 257)
    assert length_warning({"max_position_embeddings": 512}, 10**6) == ""
