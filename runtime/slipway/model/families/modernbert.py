"""ModernBERT (Warner et al. 2024): norms before layers, rotation, gates, windows in two layers of three."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from slipway.load.config import Config, flag, integer, number, positive, text
from slipway.load.errors import LoadError
from slipway.model.encoder_registry import register_encoder
from slipway.model.encoder_spec import ClassifierSpec, EncoderLayer, EncoderMlp, EncoderSpec
from slipway.model.families.encoder_parts import activation, attention, classifies, encoder, labels
from slipway.model.families.parts import layer_types
from slipway.model.rope import rope

_POOLINGS: dict[str, Literal["cls", "mean"]] = {"cls": "cls", "mean": "mean"}


@register_encoder(
    *("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    names={
        "embedding": "embeddings.tok_embeddings",
        "embedding_norm": "embeddings.norm",
        "attention_norm": "layers.{}.attn_norm",
        "q+k+v": "layers.{}.attn.Wqkv",
        "out": "layers.{}.attn.Wo",
        "mlp_norm": "layers.{}.mlp_norm",
        "gate+up": "layers.{}.mlp.Wi",
        "down": "layers.{}.mlp.Wo",
        "norm": "final_norm",
        "head_dense": "head.dense",
        "head_norm": "head.norm",
        "classifier": "classifier",
    },
    prefixes=("model.",),
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
    },
)
def modernbert(config: Config) -> EncoderSpec:
    head = None
    if classifies(config):
        pooling = text(config, "classifier_pooling", "cls")
        if pooling not in _POOLINGS:
            raise LoadError(
                "UnsupportedModel",
                f"classifier_pooling in the model's config.json is {pooling!r}, and neither cls nor mean.",
                hint='Correct it by --hf-overrides \'{"classifier_pooling": "cls"}\'.',
                argument="hf_overrides",
            )
        head = ClassifierSpec(
            labels(config),
            activation(config, "classifier_activation"),
            _POOLINGS[pooling],
            dense_bias=flag(config, "classifier_bias"),
            norm=True,
        )
    bias = flag(config, "mlp_bias")
    mlp = EncoderMlp(
        positive(config, "intermediate_size"), activation(config, "hidden_activation"), True, bias, bias
    )
    own = attention(config, bias=flag(config, "attention_bias"), rotates=False)
    spec = encoder(config, own, mlp, head)
    return replace(
        spec,
        layers=tuple(_layers(config, spec)),
        norm_eps=number(config, "norm_eps", 1e-5),
        norm_bias=flag(config, "norm_bias"),
        pre_norm=True,
    )


def _layers(config: Config, spec: EncoderSpec) -> Iterator[EncoderLayer]:
    """Full layers and local ones rotate by bases of their own."""
    every = positive(config, "global_attn_every_n_layers", 3)
    for layer, kind in zip(spec.layers, layer_types(config, lambda number: number % every > 0), strict=True):
        local = kind == "sliding_attention"
        size = layer.attention.head_dim
        field, theta = ("local_rope_theta", 1e4) if local else ("global_rope_theta", 1.6e5)
        turned = rope(config, size, kind, theta_field=field, default_theta=theta)
        window = integer(config, "local_attention", 128) // 2 + 1 if local else 0
        yield replace(layer, attention=replace(layer.attention, rope=turned, window=window))
