"""Qwen2-MoE and Qwen3-MoE: Qwen's attention over experts, with one that sees every token in the first."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, flag, integer, integers, positive
from slipway.model.families.parts import (
    LLAMA_NAMES,
    activation,
    attention,
    decoder,
    gated_mlp,
    layer_types,
    num_layers,
    sliding_window,
)
from slipway.model.registry import register
from slipway.model.spec import DecoderSpec, Layer, Mlp, Moe

NAMES = LLAMA_NAMES | {
    "router": "model.layers.{}.mlp.gate",
    "expert_gate": "model.layers.{}.mlp.experts.{}.gate_proj",
    "expert_up": "model.layers.{}.mlp.experts.{}.up_proj",
    "expert_down": "model.layers.{}.mlp.experts.{}.down_proj",
    "shared_gate": "model.layers.{}.mlp.shared_expert.gate_proj",
    "shared_up": "model.layers.{}.mlp.shared_expert.up_proj",
    "shared_down": "model.layers.{}.mlp.shared_expert.down_proj",
    "shared_scale": "model.layers.{}.mlp.shared_expert_gate",
}
QWEN2_DEFAULTS = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 16,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "qkv_bias": True,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
QWEN3_DEFAULTS = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def feed_forward(config: Config, layer: int, shared: Mlp | None) -> Mlp | Moe:
    """Experts, or a plain layer where `mlp_only_layers` or `decoder_sparse_step` say so."""
    step = positive(config, "decoder_sparse_step", 1)
    # The field has two names: transformers writes the second for Qwen3.
    experts = integer(config, "num_experts", integer(config, "num_local_experts", 0))
    if experts == 0 or layer in integers(config, "mlp_only_layers") or (layer + 1) % step:
        return gated_mlp(config)
    return Moe(
        experts=experts,
        top_k=positive(config, "num_experts_per_tok"),
        intermediate=positive(config, "moe_intermediate_size"),
        activation=activation(config),
        normalize_top_k=flag(config, "norm_topk_prob"),
        shared=shared,
    )


@register("Qwen2MoeForCausalLM", names=NAMES, defaults=QWEN2_DEFAULTS)
def qwen2_moe(config: Config) -> DecoderSpec:
    sliding, last = flag(config, "use_sliding_window"), integer(config, "max_window_layers")
    kinds = layer_types(config, lambda layer: layer % 2 == 0 and layer < last)
    heads = replace(attention(config), qkv_bias=flag(config, "qkv_bias"))
    shared = Mlp(positive(config, "shared_expert_intermediate_size"), activation(config))
    layers = [
        Layer(
            replace(heads, window=sliding_window(config, kind) if sliding else 0),
            feed_forward(config, layer, shared),
        )
        for layer, kind in enumerate(kinds)
    ]
    return decoder(config, layers)


@register("Qwen3MoeForCausalLM", names=NAMES, defaults=QWEN3_DEFAULTS)
def qwen3_moe(config: Config) -> DecoderSpec:
    window = sliding_window(config) if flag(config, "use_sliding_window") else 0
    bias = flag(config, "attention_bias")
    heads = replace(attention(config), window=window, qkv_bias=bias, out_bias=bias, qk_norm=True)
    layers = [Layer(heads, feed_forward(config, layer, None)) for layer in range(num_layers(config))]
    return decoder(config, layers)
