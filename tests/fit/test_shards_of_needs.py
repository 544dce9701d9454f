"""Ranks hold their parts of a model, and no more than those."""

from __future__ import annotations

from pathlib import Path

import pytest
from planned_needs import needs_of, write_config

from slipway.fit import Needs
from small_shapes import LLAMA, MOE

FP32 = 4


def of_llama(folder: Path, *arguments: str) -> Needs:
    return needs_of(write_config(folder, {**LLAMA, "tie_word_embeddings": False}), *arguments)


def of_experts(folder: Path, *arguments: str) -> Needs:
    return needs_of(write_config(folder, MOE), *arguments)


def whole_vectors() -> int:
    """Bytes of norms, which every rank has whole."""
    return FP32 * LLAMA["hidden_size"] * (2 * LLAMA["num_hidden_layers"] + 1)


def test_two_ranks_halve_matrices_and_pages(tmp_path: Path) -> None:
    (whole,) = of_llama(tmp_path).ranks
    first, second = of_llama(tmp_path, "--tensor-parallel-size", "2").ranks
    assert first == second
    assert first.weights - whole_vectors() == (whole.weights - whole_vectors()) / 2
    assert first.kv.page_bytes == whole.kv.page_bytes / 2


def test_ranks_beyond_the_key_heads_hold_them_again(tmp_path: Path) -> None:
    (whole,) = of_llama(tmp_path).ranks
    rank = of_llama(tmp_path, "--tensor-parallel-size", "16").ranks[0]
    assert rank.kv.page_bytes == whole.kv.page_bytes / LLAMA["num_key_value_heads"]


@pytest.mark.parametrize("more", [[], ["--enable-expert-parallel"]])
def test_two_ranks_halve_experts_whole_or_cut(tmp_path: Path, more: list[str]) -> None:
    (whole,) = of_experts(tmp_path).ranks
    rank = of_experts(tmp_path, "--tensor-parallel-size", "2", *more).ranks[0]
    norms = FP32 * MOE["num_hidden_layers"] * 2 * MOE["head_dim"]  # of queries and keys
    norms += FP32 * MOE["hidden_size"] * (2 * MOE["num_hidden_layers"] + 1)
    routers = 2 * MOE["num_hidden_layers"] * MOE["num_experts"] * MOE["hidden_size"]
    assert 2 * rank.weights - whole.weights == norms + routers


def test_stages_hold_the_layers_of_one_process_between_them(tmp_path: Path) -> None:
    (whole,) = of_llama(tmp_path).ranks
    stages = of_llama(tmp_path, "--pipeline-parallel-size", "2").ranks
    assert sum(stage.weights for stage in stages) == whole.weights
    assert sum(stage.kv.page_bytes for stage in stages) == whole.kv.page_bytes


def test_both_ends_of_a_pipeline_hold_an_embedding_that_is_the_head(tmp_path: Path) -> None:
    model = write_config(tmp_path, LLAMA)
    (whole,) = needs_of(model).ranks
    stages = needs_of(model, "--pipeline-parallel-size", "2").ranks
    again = 2 * LLAMA["vocab_size"] * LLAMA["hidden_size"]
    assert sum(stage.weights for stage in stages) == whole.weights + again


def test_engines_beside_each_other_are_each_as_large_as_one(tmp_path: Path) -> None:
    one, two = of_llama(tmp_path), of_llama(tmp_path, "--data-parallel-size", "2")
    assert (two.engines, two.processes) == (2, 2)
    assert two.ranks == one.ranks


@pytest.mark.parametrize("kept", ["fp8", "fp8_e5m2"])
def test_keys_and_values_of_a_byte_halve_a_page(tmp_path: Path, kept: str) -> None:
    (plain,) = of_llama(tmp_path).ranks
    (halved,) = of_llama(tmp_path, "--kv-cache-dtype", kept).ranks
    assert halved.kv.page_bytes == plain.kv.page_bytes / 2


def test_layers_with_a_window_hold_its_pages_alone(tmp_path: Path) -> None:
    fields = {
        **LLAMA,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 256,
    }
    (group,) = needs_of(write_config(tmp_path, fields)).ranks[0].kv.groups
    assert group.most_pages(8000, 16) < group.pages_for(8000) / 10
