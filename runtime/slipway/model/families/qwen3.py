"""Qwen3: Qwen2 without biases, with a norm over each query and key head."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, flag
from slipway.model.families.parts import LLAMA_NAMES, attention, decoder, gated_mlp
from slipway.model.families.qwen2 import DEFAULTS, windows
from slipway.model.registry import register
from slipway.model.spec import DecoderSpec, Layer


@register("Qwen3ForCausalLM", names=LLAMA_NAMES, defaults=DEFAULTS | {"head_dim": 128})
def spec(config: Config) -> DecoderSpec:
    bias, mlp = flag(config, "attention_bias"), gated_mlp(config)
    heads = replace(attention(config), qkv_bias=bias, out_bias=bias, qk_norm=True)
    return decoder(config, [Layer(replace(heads, window=window), mlp) for window in windows(config)])
