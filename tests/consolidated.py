"""Writes a model of Hugging Face's form as Mistral publishes its own: consolidated files and params.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from tensor_files import load, save

TENSORS = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attention_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attention.wq.weight",
    "self_attn.k_proj.weight": "attention.wk.weight",
    "self_attn.v_proj.weight": "attention.wv.weight",
    "self_attn.o_proj.weight": "attention.wo.weight",
    "mlp.gate_proj.weight": "feed_forward.w1.weight",
    "mlp.down_proj.weight": "feed_forward.w2.weight",
    "mlp.up_proj.weight": "feed_forward.w3.weight",
    "block_sparse_moe.gate.weight": "feed_forward.gate.weight",
}


def to_consolidated(source: Path, folder: Path, files: int = 1, **fields: Any) -> Path:
    """Returns `folder`; `fields` are more of params.json. The tokenizer goes with it."""
    config = json.loads((source / "config.json").read_text())
    stored = {}
    for path in source.glob("*.safetensors"):
        stored |= load(path)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = {}
    for name, weights in stored.items():
        theirs = written_name(name)
        if ".wq." in theirs:
            weights = in_pairs(weights, heads)
        elif ".wk." in theirs:
            weights = in_pairs(weights, kv_heads)
        tensors[theirs] = np.ascontiguousarray(weights)
    folder.mkdir()
    for path in source.glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    _save(tensors, folder, files)
    (folder / "params.json").write_text(json.dumps(params(config) | fields))
    return folder


def written_name(name: str) -> str:
    if match := re.fullmatch(r"model\.layers\.(\d+)\.block_sparse_moe\.(experts\.\d+\.w\d\.weight)", name):
        return f"layers.{match[1]}.feed_forward.{match[2]}"
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name):
        return f"layers.{match[1]}.{TENSORS[match[2]]}"
    return TENSORS[name]


def in_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row by row: what is turned with one another lies side by side."""
    size = len(rows) // heads
    order = [
        head * size + half * (size // 2) + pair
        for head in range(heads)
        for pair in range(size // 2)
        for half in range(2)
    ]
    return rows[order]


def params(config: dict[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    written = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "hidden_dim": config["intermediate_size"],
        "n_heads": heads,
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "max_position_embeddings": config["max_position_embeddings"],
        "sliding_window": config["sliding_window"],
        "tied_embeddings": config["tie_word_embeddings"],
    }
    if kinds := config.get("layer_types"):
        sizes = {"full_attention": None, "sliding_attention": config["sliding_window"]}
        written["sliding_window"] = [sizes[kind] for kind in kinds]
    if "num_local_experts" in config:
        experts = {"num_experts": config["num_local_experts"]}
        written["moe"] = experts | {"num_experts_per_tok": config["num_experts_per_tok"]}
    return written


def _save(tensors: dict[str, np.ndarray], folder: Path, files: int) -> None:
    if files == 1:
        save(tensors, folder / "consolidated.safetensors")
        return
    placed = {}
    for number in range(files):
        name = f"consolidated-{number + 1:05}-of-{files:05}.safetensors"
        part = dict(list(tensors.items())[number::files])
        placed |= dict.fromkeys(part, name)
        save(part, folder / name)
    index = {"metadata": {}, "weight_map": placed}
    (folder / "consolidated.safetensors.index.json").write_text(json.dumps(index))
