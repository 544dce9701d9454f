from __future__ import annotations

from typing import Any

import pytest

from slipway.load.arrays import BF16, FP32, DType
from slipway.load.errors import LoadError
from slipway.model.limits import max_model_len, resolve_dtype, trained_length


@pytest.mark.parametrize(
    ("asked", "stored", "served", "warning"),
    [
        ("auto", "bfloat16", BF16, ""),
        ("auto", "float32", BF16, ""),
        ("auto", "float16", BF16, "The checkpoint is float16"),
        ("half", "bfloat16", BF16, "--dtype half has no fast products"),
        ("float16", "float16", BF16, "--dtype float16 has no fast products"),
        ("float", "bfloat16", FP32, ""),
        ("float32", "float16", FP32, ""),
        ("bfloat16", "float32", BF16, ""),
    ],
)
def test_the_type_that_is_served(asked: str, stored: str, served: DType, warning: str) -> None:
    dtype, text = resolve_dtype(asked, stored)
    assert dtype == served
    assert text.startswith(warning)
    assert bool(text) == bool(warning)


def test_an_unknown_type_is_refused_with_those_that_exist() -> None:
    with pytest.raises(LoadError, match=r"--dtype int3 is not.*bfloat16"):
        resolve_dtype("int3", "bfloat16")


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({}, 2048),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        (
            {
                "max_position_embeddings": 65536,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "su"}}, 131072),
        (
            {
                "max_position_embeddings": 1000,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            8000,
        ),
    ],
)
def test_a_models_own_length_counts_its_rotary_scaling(config: dict[str, Any], length: int) -> None:
    assert trained_length(config) == length


def test_the_length_is_the_models_unless_a_shorter_one_is_asked_for() -> None:
    config = {"max_position_embeddings": 4096}
    assert max_model_len(None, config, 0, allow_long=False) == (4096, "")
    assert max_model_len(-1, config, 0, allow_long=False) == (4096, "")
    assert max_model_len(100, config, 0, allow_long=False) == (100, "")


def test_a_longer_length_than_the_models_is_refused_or_on_request_warned_of() -> None:
    config = {"max_position_embeddings": 4096}
    with pytest.raises(
        LoadError, match=r"5000 is too long.*4096 tokens.*VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    ) as no:
        max_model_len(5000, config, 0, allow_long=False)
    assert (no.value.code, no.value.argument) == ("BadArguments", "max_model_len")
    length, warning = max_model_len(5000, config, 0, allow_long=True)
    assert length == 5000
    assert "made for 4096 tokens" in warning


def test_a_switched_off_window_caps_the_length() -> None:
    assert max_model_len(None, {"max_position_embeddings": 4096}, 512, allow_long=False) == (512, "")
    with pytest.raises(LoadError, match=r"without its sliding window, which holds 512 tokens"):
        max_model_len(513, {"max_position_embeddings": 4096}, 512, allow_long=False)
