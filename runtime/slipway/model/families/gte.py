"""Alibaba's GTE encoders (Zhang et al. 2024): BERT with rotation and gates; their own code calls them New."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, integer, positive
from slipway.model.encoder_registry import register_encoder
from slipway.model.encoder_spec import ClassifierSpec, EncoderMlp, EncoderSpec
from slipway.model.families.encoder_parts import (
    BASE_SIZES,
    ROTARY_NAMES,
    activation,
    attention,
    classifies,
    encoder,
    labels,
    refuse,
)


@register_encoder(
    *("GteModel", "GteForMaskedLM", "GteForSequenceClassification"),
    *("NewModel", "NewForMaskedLM", "NewForSequenceClassification"),
    names=ROTARY_NAMES,
    prefixes=("gte.", "new."),
    aliases={
        "encoder.layer.": "layers.",
        ".attention.": ".self_attn.",
        ".attn_ln.": ".post_attention_layernorm.",
        ".mlp_ln.": ".post_mlp_layernorm.",
    },
    defaults=BASE_SIZES
    | {
        "vocab_size": 250048,
        "max_position_embeddings": 8192,
        "rope_theta": 160_000.0,
    },
)
def gte(config: Config) -> EncoderSpec:
    refuse(config, position_embedding_type="rope", layer_norm_type="layer_norm", logn_attention_scale=False)
    head = ClassifierSpec(labels(config), "tanh") if classifies(config) else None
    mlp = EncoderMlp(positive(config, "intermediate_size"), activation(config), gated=True, bias=False)
    own = attention(config, bias=True, rotates=True)
    spec = encoder(config, own, mlp, head)
    return replace(spec, types=integer(config, "type_vocab_size", 1))
