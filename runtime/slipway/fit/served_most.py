"""Models that are served most, as far as their kernels show it: an image carries what these launch.

Configurations are those of the models' own config.json, of public repositories; layers beyond the first of
each kind are left out, since they launch the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
_QWEN3: Mapping[str, Any] = {
    **_LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "Llama-3.1-8B": _LLAMA,
    "Llama-3.1-70B": {**_LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64},
    "Llama-3.2-1B": {
        **_LLAMA,
        "head_dim": 64,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-7B": {
        **_LLAMA,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 32768,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "vocab_size": 152064,
    },
    "Qwen3-8B": _QWEN3,
    "Qwen3-30B-A3B": {
        **_QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
    },
    "Mixtral-8x7B": {
        **_LLAMA,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "max_position_embeddings": 32768,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "rope_theta": 1000000.0,
        "vocab_size": 32000,
    },
    "Gemma-2-9B": {
        **_LLAMA,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 3584,
        "max_position_embeddings": 8192,
        "num_attention_heads": 16,
        "num_hidden_layers": 2,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "vocab_size": 256000,
    },
}
"""By name."""

_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

MODES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "bf16": ({}, {}),
    "fp8": ({}, {"quantization": "fp8", "kv_cache_dtype": "fp8"}),
    "fp8 by blocks": ({"quantization_config": _BLOCKS}, {}),
    "AWQ": ({"quantization_config": _AWQ}, {}),
    "GPTQ": ({"quantization_config": _GPTQ}, {}),
}
"""By name: fields that are added to config.json, and the engine's settings."""


def served() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The config.json and the engine's settings of each model in each mode."""
    for config in MODELS.values():
        for more, settings in MODES.values():
            yield {**config, **more}, {**settings}
