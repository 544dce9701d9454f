"""Mixtral: Mistral whose feed-forward layer is a choice of two experts."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, positive
from slipway.model.families.parts import (
    LLAMA_NAMES,
    activation,
    attention,
    decoder,
    num_layers,
    sliding_window,
)
from slipway.model.registry import register
from slipway.model.spec import DecoderSpec, Layer, Moe

NAMES = LLAMA_NAMES | {
    "router": "model.layers.{}.block_sparse_moe.gate",
    "expert_gate": "model.layers.{}.block_sparse_moe.experts.{}.w1",
    "expert_up": "model.layers.{}.block_sparse_moe.experts.{}.w3",
    "expert_down": "model.layers.{}.block_sparse_moe.experts.{}.w2",
}
ALIASES = {".mlp.": ".block_sparse_moe."}
"""transformers 5 renamed the block."""
DEFAULTS = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


@register("MixtralForCausalLM", names=NAMES, defaults=DEFAULTS, aliases=ALIASES)
def spec(config: Config) -> DecoderSpec:
    moe = Moe(
        experts=positive(config, "num_local_experts"),
        top_k=positive(config, "num_experts_per_tok"),
        intermediate=positive(config, "intermediate_size"),
        activation=activation(config),
        normalize_top_k=True,
    )
    layer = Layer(replace(attention(config), window=sliding_window(config)), moe)
    return decoder(config, [layer] * num_layers(config))
