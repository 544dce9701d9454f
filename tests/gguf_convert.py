"""Writes a Hugging Face model as GGUF, in the way of llama.cpp's converter, with the gguf library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

_GGUF_NAMES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}


def to_gguf(
    folder: Path,
    path: Path,
    quantization: str = "F32",
    rope_freqs: np.ndarray | None = None,
    others: Mapping[str, str] | None = None,
    **split: int,
) -> Path:
    """Convert `folder` to the file `path`; `quantization` is for matrices, norms stay F32.

    others  by a piece of a matrix's name in the file, another type
    """
    config = json.loads((folder / "config.json").read_text())
    name = _GGUF_NAMES[config["model_type"]]
    arch = next(arch for arch, named in gguf.MODEL_ARCH_NAMES.items() if named == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, name, **split)
    _metadata(writer, config)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs.astype(np.float32))
    for stem, suffix, weights in _tensors(folder, config, name):
        target = f"{names.get_name(stem)}{suffix}"
        assert not target.startswith("None"), stem
        named = next((kind for piece, kind in (others or {}).items() if piece in target), quantization)
        kind = gguf.GGMLQuantizationType[named]
        if weights.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(target, weights)
        else:
            writer.add_tensor(target, gguf.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config["rope_parameters"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    if pooling := config.get("pooled_as"):
        writer.add_pooling_type(gguf.PoolingType[pooling])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config["model_type"] in ("mistral", "gemma2", "gemma3_text"):
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config["layer_types"]])
    if experts := config.get("num_experts") or config.get("num_local_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    tokens = [f"token{number}" for number in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)


def _tensors(folder: Path, config: dict[str, Any], name: str):  # type: ignore[no-untyped-def]
    """(name without suffix, suffix, weights fp32) with the converter's changes applied."""
    stacks: dict[str, list[np.ndarray]] = {}
    with safe_open(folder / "model.safetensors", "numpy") as file:
        for key in sorted(file.keys(), key=_by_expert):
            weights = file.get_tensor(key).astype(np.float32)
            stem, _, suffix = key.rpartition(".")
            if name.startswith("gemma") and key.endswith("norm.weight"):
                weights = weights + 1
            if name == "llama" and "q_proj" in key:
                weights = _paired(weights, config["num_attention_heads"])
            if name == "llama" and "k_proj" in key:
                weights = _paired(weights, config["num_key_value_heads"])
            if "shared_expert_gate" in key:
                weights = weights[0]
            if expert := re.fullmatch(r"(.*experts)\.\d+\.(\w+)", stem):
                stacks.setdefault(f"{expert[1]}.{expert[2]}", []).append(weights)
            else:
                yield stem, f".{suffix}", weights
    for stem, experts in stacks.items():
        yield stem, ".weight", np.stack(experts)


def _by_expert(key: str) -> tuple[object, ...]:
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def _paired(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to neighbouring pairs."""
    halves = weights.reshape(heads, 2, -1, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weights.shape)
