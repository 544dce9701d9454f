"""Nomic's BERT (Nussbaum et al. 2024): rotation, gates, no biases but those of norms."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, positive, text
from slipway.model.encoder_registry import register_encoder
from slipway.model.encoder_spec import ClassifierSpec, EncoderActivation, EncoderMlp, EncoderSpec
from slipway.model.families.encoder_parts import (
    BASE_SIZES,
    ROTARY_NAMES,
    activation,
    attention,
    classifies,
    encoder,
    labels,
    lacking,
    refuse,
)

_GATES: dict[str, EncoderActivation] = {"swiglu": "silu", "geglu": "gelu"}
_OLD_FIELDS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "max_trained_positions": "max_position_embeddings",
}
"""Of the code that comes with the checkpoints, and transformers' own for the same.

That code stretches the rotation of requests longer than those in training; here no request is longer.
"""


@register_encoder(
    *("NomicBertModel", "NomicBertForMaskedLM", "NomicBertForSequenceClassification"),
    names=ROTARY_NAMES,
    prefixes=("nomic_bert.", "bert."),
    aliases={
        "encoder.layers.": "layers.",
        "emb_ln.": "embeddings.LayerNorm.",
        ".attn.Wqkv.": ".self_attn.qkv_proj.",
        ".attn.out_proj.": ".self_attn.o_proj.",
        ".fc11.": ".up_proj.",
        ".fc12.": ".gate_proj.",
        ".fc2.": ".down_proj.",
        ".norm1.": ".post_attention_layernorm.",
        ".norm2.": ".post_mlp_layernorm.",
    },
    defaults=BASE_SIZES
    | {
        "vocab_size": 30528,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "type_vocab_size": 2,
        "rope_theta": 1000.0,
    },
)
def nomic_bert(config: Config) -> EncoderSpec:
    usual = {_OLD_FIELDS.get(name, name): value for name, value in config.items() if value is not None}
    refuse(
        config,
        prenorm=False,
        parallel_block=False,
        use_rms_norm=False,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        moe_every_n_layers=0,
    )
    gate = text(config, "activation_function", "")
    if gate and gate not in _GATES:
        raise lacking(config, f"activation_function {gate!r}, which gates nothing,")
    kind = _GATES[gate] if gate else activation(usual)
    head = ClassifierSpec(labels(config), "tanh") if classifies(config) else None
    mlp = EncoderMlp(positive(usual, "intermediate_size"), kind, gated=True, bias=False, out_bias=False)
    spec = encoder(usual, attention(usual, bias=False, rotates=True), mlp, head)
    return replace(spec, types=positive(usual, "type_vocab_size"))
