"""Mistral: Llama, where the first version's layers see a sliding window."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config
from slipway.model.families.parts import (
    LLAMA_NAMES,
    attention,
    decoder,
    gated_mlp,
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
