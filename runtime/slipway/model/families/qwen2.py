"""Qwen2 and Qwen2.5: Llama with biases on Q, K and V, and a window in the upper layers where asked for."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, flag, integer
from slipway.model.families.parts import (
    LLAMA_NAMES,
    attention,
    decoder,
    gated_mlp,
    layer_types,
    num_layers,
    sliding_window,
)
from slipway.model.registry import register
from slipway.model.spec import DecoderSpec, Layer

DEFAULTS = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def windows(config: Config) -> list[int]:
    """By layer. Without `use_sliding_window` the field `sliding_window` counts for nothing."""
    if not flag(config, "use_sliding_window"):
        return [0] * num_layers(config)
    first = integer(config, "max_window_layers")
    return [sliding_window(config, kind) for kind in layer_types(config, lambda layer: layer >= first)]


@register("Qwen2ForCausalLM", names=LLAMA_NAMES, defaults=DEFAULTS)
def spec(config: Config) -> DecoderSpec:
    heads, mlp = replace(attention(config), qkv_bias=True), gated_mlp(config)
    return decoder(config, [Layer(replace(heads, window=window), mlp) for window in windows(config)])
