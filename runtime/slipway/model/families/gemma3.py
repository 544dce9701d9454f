"""Gemma 3's text models: Gemma 2 with normed heads, five sliding layers to a full one, and two rotations.

EmbeddingGemma (2025) is one whose rows see both ways.
"""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, integer, positive
from slipway.model.families.gemma2 import DEFAULTS, gemma_attention, gemma_decoder, gemma_mlp
from slipway.model.families.parts import (
    SANDWICH_NAMES,
    head_dim,
    layer_types,
    sees_both_ways,
    sliding_window,
)
from slipway.model.registry import register
from slipway.model.rope import rope
from slipway.model.spec import DecoderSpec, Layer

GEMMA3_DEFAULTS = DEFAULTS | {
    "max_position_embeddings": 131072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "sliding_window_pattern": 6,
}


@register("Gemma3ForCausalLM", "Gemma3TextModel", names=SANDWICH_NAMES, defaults=GEMMA3_DEFAULTS)
def spec(config: Config) -> DecoderSpec:
    period, size = positive(config, "sliding_window_pattern"), head_dim(config)
    rotary = {
        "full_attention": rope(config, size, default_theta=1e6),
        "sliding_attention": rope(config, size, "sliding_attention", theta_field="rope_local_base_freq"),
    }
    mlp = gemma_mlp(config)
    layers = [
        Layer(replace(gemma_attention(config, _window(config, kind)), rope=rotary[kind], qk_norm=True), mlp)
        for kind in layer_types(config, lambda layer: (layer + 1) % period != 0)
    ]
    return gemma_decoder(config, layers)


def _window(config: Config, layer_type: str) -> int:
    """Of one that sees both ways, `sliding_window` is what a row sees to both sides together."""
    if layer_type != "sliding_attention" or not sees_both_ways(config):
        return sliding_window(config, layer_type)
    return 0 if config.get("sliding_window") is None else integer(config, "sliding_window") // 2 + 1
