from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factory import make_model, model_folders
from gguf_convert import to_gguf
from model.stepping import Stepper, assert_same_as_reference, plan, prompt
from recorded_logits import FAMILIES, TINY
from slipway.load.arrays import BF16
from slipway.load.errors import LoadError
from slipway.model.registry import families
from slipway.model.weights import MlpWeights, load_weights
from slipway.schemes.choice import Schemes
from slipway.worker.native import Native


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return model_folders(tmp_path_factory.mktemp("lowered"), TINY)


@pytest.mark.torch
@pytest.mark.parametrize("variant", TINY)
def test_greedy_output_is_that_of_transformers(folders: Any, variant: str) -> None:
    stepper = Stepper(folders(variant))
    assert stepper.plan.route.spec
    tokens = prompt(50)
    assert_same_as_reference(folders(variant), tokens, stepper.greedy({1: tokens}, 24)[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", FAMILIES)
def test_results_do_not_depend_on_company_chunk_or_threads(folders: Any, variant: str, dtype: str) -> None:
    prompts = {slot: prompt(length, slot) for slot, length in enumerate((45, 3, 70, 18))}
    together = Stepper(folders(variant), dtype=dtype).greedy(prompts, 8)
    alone = Stepper(folders(variant), dtype=dtype, threads=1, block_size=32)
    for slot, tokens in prompts.items():
        assert alone.greedy({0: tokens}, 8, chunk=7)[0] == together[slot]


def test_bfloat16_is_close_to_float32(folders: Any) -> None:
    tokens = prompt(40)
    exact = Stepper(folders("llama")).greedy({0: tokens}, 1)[0][0]
    narrow = Stepper(folders("llama"), dtype="bfloat16").greedy({0: tokens}, 1)[0][0]
    assert narrow[0] == exact[0]
    assert abs(narrow[1] - exact[1]) < 0.1


MIXED = {
    "token_embd": "Q8_0",
    "attn_k": "Q8_0",
    "attn_v": "F16",
    "blk.0.ffn_up": "Q5_1",
    "blk.1.ffn_down": "Q5_0",
    "blk.2.ffn": "Q4_0",
    "ffn_gate_inp": "F32",
}
"""Q, K and V are three products, gate and up of the first layer two."""


@pytest.fixture(scope="module")
def packed_models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """GGUF files of mixed types, for widths that whole groups fill."""
    root = tmp_path_factory.mktemp("packed")
    widths = {"head_dim": 16, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96}

    def path(architecture: str, **overrides: Any) -> Path:
        place = root / f"{architecture}.gguf"
        if not place.exists():
            folder = make_model(architecture, root / architecture, **(widths | overrides))
            to_gguf(folder, place, "Q4_1", others=MIXED)
        return place

    return path


def test_each_matrix_is_held_in_the_form_that_the_file_has(packed_models: Any) -> None:
    found = plan(packed_models("llama"), dtype="bfloat16")
    assert isinstance(found.route, Native)
    family = families()[found.route.architecture]
    weights = load_weights(found.route.spec, family, found.checkpoint, Schemes(BF16))
    first, second, third = weights.layers
    assert [part.scheme.packed.dtype for part in first.qkv.parts] == ["int4", "int8", "bf16"]
    assert isinstance(first.mlp, MlpWeights)
    assert isinstance(second.mlp, MlpWeights)
    assert isinstance(third.mlp, MlpWeights)
    assert [part.packed.dtype for part in first.mlp.gate_up.parts] == ["int4", "int5"]  # Q4_1 above Q5_1
    assert second.mlp.gate_up.whole.dtype == "int4"
    assert second.mlp.down.whole.dtype == "int5"  # Q5_0
    assert weights.embedding.whole.dtype == "int8"
    with pytest.raises(ValueError, match="q, k, v lie in 3 matrices"):
        _ = first.qkv.whole


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen2_moe"])
def test_a_packed_model_of_mixed_types_is_close_to_the_dequantized_one(
    packed_models: Any, architecture: str
) -> None:
    path = packed_models(architecture)
    tokens = prompt(40)
    exact = Stepper(path).greedy({0: tokens}, 1)[0][0]
    packed = Stepper(path, dtype="bfloat16").greedy({0: tokens}, 1)[0][0]
    assert packed[0] == exact[0]
    assert abs(packed[1] - exact[1]) < 0.1


def test_without_its_window_a_model_sees_every_token_and_is_no_longer_than_the_window(folders: Any) -> None:
    found = plan(folders("mistral"), disable_sliding_window=True)
    assert [group.window for group in found.kv.groups] == [0]
    assert found.max_model_len == 24


@pytest.mark.torch
def test_a_head_size_that_the_kernel_lacks_is_refused_where_native_code_is_asked_for(tmp_path: Path) -> None:
    folder = make_model("qwen3", tmp_path, head_dim=20)
    with pytest.raises(LoadError, match=r"heads of 20 numbers.*multiple of 8"):
        plan(folder, model_impl="vllm")
    assert plan(folder).route.spec is None


def test_a_length_beyond_the_models_needs_its_variable(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadError, match="--max-model-len 513 is too long"):
        plan(folders("llama"), max_model_len=513)
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    found = plan(folders("llama"), max_model_len=513)
    assert found.max_model_len == 513
    assert "made for 512 tokens" in found.warnings[0]


def test_planning_a_native_model_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, slipway.worker.plan; sys.exit(bool({'torch', 'transformers'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_random_weights_make_a_model_that_runs(folders: Any) -> None:
    first = Stepper(folders("qwen2_moe"), load_format="dummy").greedy({0: prompt(9)}, 3)
    assert first == Stepper(folders("qwen2_moe"), load_format="dummy").greedy({0: prompt(9)}, 3)
