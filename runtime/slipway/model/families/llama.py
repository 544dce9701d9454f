"""Llama 1 to 3.3, SmolLM and their many kin."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, flag
from slipway.model.families.parts import LLAMA_NAMES, attention, decoder, gated_mlp, num_layers
from slipway.model.registry import register
from slipway.model.spec import DecoderSpec, Layer


@register("LlamaForCausalLM", names=LLAMA_NAMES)
def spec(config: Config) -> DecoderSpec:
    bias = flag(config, "attention_bias")
    heads = replace(attention(config), qkv_bias=bias, out_bias=bias)
    mlp = replace(gated_mlp(config), bias=flag(config, "mlp_bias"))
    return decoder(config, [Layer(heads, mlp)] * num_layers(config))
