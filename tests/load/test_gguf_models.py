"""A GGUF file gives the names, values and configuration of the checkpoint it was made from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from factory import make_model
from gguf_convert import to_gguf
from packed_forms import as_gguf
from slipway.engine.config import EngineConfig
from slipway.load.arrays import BF16, FP32
from slipway.load.checkpoint import Checkpoint, open_checkpoint
from slipway.load.errors import LoadError
from slipway.load.gguf.config import model_config
from slipway.load.gguf.header import read
from slipway.load.quantized.form import GroupedForm
from slipway.load.quantized.tensors import Blocks, Quantized
from slipway.schemes.choice import Schemes
from slipway.schemes.notices import notices
from tensor_files import load, numbers_of, same

FAMILIES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "qwen2_moe",
    "qwen3_moe",
)


def opened(path: Path, **options: object) -> Checkpoint:
    settings = EngineConfig(model=str(path), use_tqdm_on_load=False, **options)  # type: ignore[arg-type]
    return open_checkpoint(settings, lambda phase, done, total: None)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_tensors_equal_those_of_the_original_checkpoint(
    architecture: str, tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny_models(architecture)
    expected = load(folder / "model.safetensors")
    found = dict(numbers_of(opened(to_gguf(folder, tmp_path / "model.gguf"))))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        # The + 1 of Gemma's norms costs the last bits; everything else is only moved.
        np.testing.assert_allclose(found[name], weights, rtol=0, atol=1.2e-7 if "norm" in name else 0)


@pytest.mark.torch
@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_configuration_builds_the_same_model(
    architecture: str, tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import AutoConfig

    folder = tiny_models(architecture)
    config = opened(to_gguf(folder, tmp_path / "model.gguf")).config
    expected = AutoConfig.from_pretrained(folder).to_dict()
    if expected.get("head_dim", 0) is None:
        expected["head_dim"] = expected["hidden_size"] // expected["num_attention_heads"]
    found = AutoConfig.for_model(**config).to_dict()
    ignored = {"dtype", "architectures", "transformers_version", "initializer_range", "pad_token_id"}
    ignored |= {"_name_or_path", "max_window_layers"}  # the latter: if Qwen's window is on
    differing = {
        key: (found.get(key), value)
        for key, value in expected.items()
        if key not in ignored and found.get(key) != value
    }
    assert differing == {}
    assert config["architectures"] == AutoConfig.from_pretrained(folder).architectures


def test_matrices_may_be_quantized_and_experts_too(
    tmp_path: Path,
) -> None:
    folder = make_model("qwen3_moe", tmp_path / "model", head_dim=16, moe_intermediate_size=64)
    expected = load(folder / "model.safetensors")
    found = dict(numbers_of(opened(to_gguf(folder, tmp_path / "model.gguf", "Q8_0"))))
    for name, weights in expected.items():
        np.testing.assert_allclose(found[name], weights, rtol=0, atol=np.abs(weights).max() / 200)


PACKED = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 8, "Q5_1": 8, "Q8_0": 8}


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "mixtral"])
def test_integers_stand_for_the_weights_to_the_bit(
    architecture: str, kind: str, tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    """To that of gguf's own arithmetic."""
    others = {"attn_v": "Q8_0", "attn_output": "F16", "ffn_gate_inp": "F32"}
    path = to_gguf(tiny_models(architecture), tmp_path / "model.gguf", kind, others=others)
    kinds = {"v_proj": "Q8_0", "o_proj": "F16", "block_sparse_moe.gate": "F32"}
    dense = {}
    for name, weights in load(tiny_models(architecture) / "model.safetensors").items():
        matching = (found for part, found in kinds.items() if part in name)
        named = "F32" if weights.ndim == 1 else next(matching, kind)
        type_ = gguf.GGMLQuantizationType[named]
        dense[name] = gguf.dequantize(gguf.quantize(weights, type_), type_)
    stored = {name: found.read() for name, found in opened(path).stored(FP32)}
    forms = opened(path).forms()
    assert dense.keys() == stored.keys()
    for name, weights in dense.items():
        matrix = stored[name]
        plain = weights.ndim == 1 or any(part in name for part in ("o_proj", "block_sparse_moe.gate"))
        if plain:
            assert name not in forms
            assert not isinstance(matrix, Quantized)
            assert np.array_equal(matrix.astype(np.float32), weights)
            continue
        assert isinstance(matrix, Blocks)
        assert same(matrix.dequantized(FP32), weights)
        parts, form = matrix.grouped(), forms[name]
        assert form == GroupedForm(parts.bits, parts.group, parts.minimums is not None, blocks=matrix.name)
        assert parts.bits == (8 if "v_proj" in name else PACKED[kind])


def test_types_that_products_cannot_read_are_dequantized_and_said(tmp_path: Path) -> None:
    checkpoint = opened(as_gguf(tmp_path / "model.gguf", "IQ3_S"))
    assert checkpoint.forms() == {}
    assert all(isinstance(weights, np.ndarray) for _, weights in numbers_of(checkpoint, BF16))
    assert set(checkpoint.decoded.values()) == {("IQ3_S", 3.4375)}
    (notice,) = notices([], Schemes(BF16).keeps, BF16, decoded=checkpoint.decoded.values())
    count = len(checkpoint.decoded)
    assert notice == (
        f"{count} quantized matrices are held in bfloat16: no product reads IQ3_S as stored. "
        "They take up to 4.7 times the memory of the file, and as much longer to read in each step."
    )


def test_a_split_model_is_read_from_any_of_its_parts(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny_models("llama")
    to_gguf(folder, tmp_path / "model.gguf", split_max_tensors=11)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) == 3
    expected = load(folder / "model.safetensors")
    for part in parts:
        assert dict(numbers_of(opened(part))).keys() == expected.keys()
    assert opened(tmp_path).total_bytes == opened(parts[0]).total_bytes
    parts[1].unlink()
    with pytest.raises(LoadError, match=f"There is no file .*{parts[1].name}"):
        opened(parts[0])


def test_llama_3_scaling_is_recovered_from_its_divisors(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    wavelengths = 2 * math.pi * 10000.0 ** (np.arange(8) / 8)
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    divisors = 1 / ((1 - smooth) / 8 + smooth)
    folder = tiny_models("llama")
    path = to_gguf(folder, tmp_path / "model.gguf", rope_freqs=divisors)
    assert opened(path).config["rope_scaling"] == scaling
    odd = to_gguf(folder, tmp_path / "odd.gguf", rope_freqs=divisors[::-1])
    with pytest.raises(LoadError, match=r"not Llama 3\.1's"):
        opened(odd)


@pytest.mark.parametrize(
    ("architecture", "period", "full"),
    [("gemma2", None, [2, 4, 6]), ("gemma3_text", None, [6]), ("gemma3_text", 3, [3, 6])],
)
def test_sliding_layers_may_be_told_by_their_period_or_not_at_all(
    tiny_models: Callable[[str], Path], tmp_path: Path, architecture: str, period: int | None, full: list[int]
) -> None:
    header = read(to_gguf(tiny_models(architecture), tmp_path / "model.gguf"))
    pattern = f"{header.architecture}.attention.sliding_window_pattern"
    metadata = {key: value for key, value in header.metadata.items() if key != pattern}
    metadata |= {f"{header.architecture}.block_count": 7} | ({pattern: period} if period else {})
    tensors = header.tensors | {
        f"blk.{n}.attn_q.weight": header.tensors["blk.0.attn_q.weight"] for n in range(7)
    }
    types = model_config(replace(header, metadata=metadata, tensors=tensors))["layer_types"]
    assert [layer for layer, kind in enumerate(types, 1) if kind == "full_attention"] == full


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("attention.head_count", 0, "llama.attention.head_count is 0"),
        ("embedding_length", 577, "llama.embedding_length is 577, and the tensors have 64"),
        ("embedding_length", 2**31, "llama.embedding_length is 2147483648, and the tensors have 64"),
        ("feed_forward_length", 1537, "llama.feed_forward_length is 1537, and the tensors have \\d+"),
        ("block_count", 100_000, "llama.block_count is 100000, and the tensors have 3"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "rms_epsilon is nan; a number above 0"),
        ("rope.freq_base", 0.0, "freq_base is 0.0; a number above 0"),
        ("block_count", 1, "llama.block_count is 1, and the tensors have 3"),
    ],
)
def test_sizes_that_are_not_those_of_the_tensors_are_refused(
    tiny_models: Callable[[str], Path], tmp_path: Path, key: str, value: float, words: str
) -> None:
    header = read(to_gguf(tiny_models("llama"), tmp_path / "model.gguf"))
    with pytest.raises(LoadError, match=words):
        model_config(replace(header, metadata=header.metadata | {f"llama.{key}": value}))


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "rwkv7")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match="'rwkv7', which is not supported from GGUF yet") as raised:
        opened(tmp_path / "model.gguf")
    assert raised.value.code == "UnsupportedModel"


def test_progress_counts_every_byte_of_the_weights(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    path = to_gguf(tiny_models("qwen2"), tmp_path / "model.gguf")
    settings = EngineConfig(model=str(path), use_tqdm_on_load=False)
    checkpoint = open_checkpoint(settings, lambda *progress: told.append(progress))
    names = [name for name, _ in numbers_of(checkpoint, BF16)]
    assert len(told) == len(names)
    assert told[-1] == ("load", checkpoint.total_bytes, checkpoint.total_bytes)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


@pytest.mark.slow
def test_the_demo_model_equals_the_reference_library_after_restoring_rows(demo_model: Path) -> None:
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(demo_model).tensors}
    found = dict(numbers_of(opened(demo_model)))
    assert len(found) == len(reader) == 272

    def reference(name: str) -> np.ndarray:
        read = reader[name]
        return gguf.dequantize(read.data, read.tensor_type)

    for ours, theirs in (
        ("model.embed_tokens", "token_embd"),
        ("model.layers.7.mlp.down_proj", "blk.7.ffn_down"),
        ("model.layers.29.self_attn.v_proj", "blk.29.attn_v"),
        ("model.norm", "output_norm"),
    ):
        assert same(found[f"{ours}.weight"], reference(f"{theirs}.weight"))
    for ours, theirs, heads in (("q_proj", "attn_q", 9), ("k_proj", "attn_k", 3)):
        rows = reference(f"blk.3.{theirs}.weight").reshape(heads, 32, 2, 576)
        restored = rows.swapaxes(1, 2).reshape(heads * 64, 576)
        assert same(found[f"model.layers.3.self_attn.{ours}.weight"], restored)


def test_pages_of_the_file_do_not_stay_in_memory(demo_model: Path) -> None:
    checkpoint = opened(demo_model)
    tensors = numbers_of(checkpoint, BF16)
    for _ in range(272):
        next(tensors)
    mapped = Path("/proc/self/smaps").read_text().split(str(demo_model), 1)[1]
    resident = next(line for line in mapped.splitlines() if line.startswith("Rss:"))
    assert int(resident.split()[1]) * 1024 < checkpoint.total_bytes / 10
