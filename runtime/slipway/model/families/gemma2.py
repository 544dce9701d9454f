"""Gemma 2: norms on both sides of each block, capped scores and logits, every other layer sliding."""

from __future__ import annotations

import math
from dataclasses import replace

from slipway.load.config import Config, flag, number, positive
from slipway.model.families.parts import (
    SANDWICH_NAMES,
    activation,
    attention,
    decoder,
    layer_types,
    sliding_window,
)
from slipway.model.registry import register
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp

DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",  # `hidden_act` is there too and means nothing
    "tie_word_embeddings": True,
}


def gemma_attention(config: Config, window: int) -> Attention:
    bias = flag(config, "attention_bias")
    return replace(
        attention(config),
        window=window,
        scale=number(config, "query_pre_attn_scalar") ** -0.5,
        softcap=number(config, "attn_logit_softcapping", 0.0),
        qkv_bias=bias,
        out_bias=bias,
    )


def gemma_mlp(config: Config) -> Mlp:
    return Mlp(positive(config, "intermediate_size"), activation(config, "hidden_activation"))


def gemma_decoder(config: Config, layers: list[Layer]) -> DecoderSpec:
    return replace(
        decoder(config, layers),
        norm_add_one=True,
        sandwich=True,
        embedding_scale=math.sqrt(positive(config, "hidden_size")),
        logit_softcap=number(config, "final_logit_softcapping", 0.0),
    )


@register("Gemma2ForCausalLM", names=SANDWICH_NAMES, defaults=DEFAULTS)
def spec(config: Config) -> DecoderSpec:
    mlp = gemma_mlp(config)
    kinds = layer_types(config, lambda layer: layer % 2 == 0)
    windows = [sliding_window(config, kind) for kind in kinds]
    return gemma_decoder(config, [Layer(gemma_attention(config, window), mlp) for window in windows])
