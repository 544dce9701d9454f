"""Models of the sizes that people serve, with random weights, as `save_pretrained` would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np

from factory import write_tokenizer
from slipway.model.registry import family_of
from slipway.model.roles import expected_shapes

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
"""1.24e9 parameters."""
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "moe_intermediate_size": 384,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32768,
    "max_position_embeddings": 8192,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""3.9e8 parameters, in 32 experts a layer."""
_TILE = 1 << 20
"""Numbers that are drawn, and then repeated: only their sizes matter."""


def write_shape(folder: Path, config: Mapping[str, object]) -> Path:
    """Write the model with its tokenizer of 512 tokens, and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    family = family_of(str(config["architectures"][0]))  # type: ignore[index]
    assert family is not None
    shapes = expected_shapes(family.spec(config), family)
    ends = np.cumsum([2 * prod(shape) for shape in shapes.values()]).tolist()
    header = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [end - 2 * prod(shape), end]}
        for (name, shape), end in zip(shapes.items(), ends, strict=True)
    }
    table = json.dumps(header).encode()
    values = np.random.default_rng(0).normal(0.0, 0.02, _TILE).astype(np.float32)
    tile = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # the upper half is bfloat16
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(table).to_bytes(8, "little") + table)
        left = ends[-1]
        while left:
            left -= file.write(tile[:left])
    return folder
