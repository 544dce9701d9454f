"""Mistral: Llama, where the first version's layers see a sliding window, and some of Ministral's do."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config
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

DEFAULTS = {"max_position_embeddings": 131072, "sliding_window": 4096, "num_key_value_heads": 8}


@register("MistralForCausalLM", names=LLAMA_NAMES, defaults=DEFAULTS)
def spec(config: Config) -> DecoderSpec:
    layer = Layer(replace(attention(config), window=sliding_window(config)), gated_mlp(config))
    return decoder(config, [layer] * num_layers(config))


@register("MinistralForCausalLM", names=LLAMA_NAMES, defaults=DEFAULTS)
def alternating(config: Config) -> DecoderSpec:
    heads, mlp = attention(config), gated_mlp(config)
    slides = bool(sliding_window(config))
    windows = [sliding_window(config, kind) for kind in layer_types(config, lambda layer: slides)]
    return decoder(config, [Layer(replace(heads, window=window), mlp) for window in windows])
