"""What most encoders share: BERT's names and the fields of `config.json` that all of them have."""

from __future__ import annotations

from slipway.load.config import Config, number, positive, table, text, texts
from slipway.load.errors import LoadError
from slipway.model.encoder_spec import (
    ClassifierSpec,
    EncoderActivation,
    EncoderLayer,
    EncoderMlp,
    EncoderSpec,
)
from slipway.model.rope import rope
from slipway.model.spec import Attention

BERT_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "q": "encoder.layer.{}.attention.self.query",
    "k": "encoder.layer.{}.attention.self.key",
    "v": "encoder.layer.{}.attention.self.value",
    "out": "encoder.layer.{}.attention.output.dense",
    "attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "up": "encoder.layer.{}.intermediate.dense",
    "down": "encoder.layer.{}.output.dense",
    "mlp_norm": "encoder.layer.{}.output.LayerNorm",
    "head_dense": "pooler.dense",
    "classifier": "classifier",
}
BASE_SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
"""Of BERT base, which its successors have where config.json is silent, too."""
OLD_NORMS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""As the first checkpoints of BERT call them."""
ROTARY_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "q": "layers.{}.self_attn.q_proj",
    "k": "layers.{}.self_attn.k_proj",
    "v": "layers.{}.self_attn.v_proj",
    "q+k+v": "layers.{}.self_attn.qkv_proj",
    "out": "layers.{}.self_attn.o_proj",
    "attention_norm": "layers.{}.post_attention_layernorm",
    "gate": "layers.{}.mlp.gate_proj",
    "up": "layers.{}.mlp.up_proj",
    "up+gate": "layers.{}.mlp.up_gate_proj",
    "down": "layers.{}.mlp.down_proj",
    "mlp_norm": "layers.{}.post_mlp_layernorm",
    "head_dense": "pooler.dense",
    "classifier": "classifier",
}
"""Of encoders that rotate their heads, as transformers 5 has them."""

_ACTIVATIONS: dict[str, EncoderActivation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}


def activation(config: Config, field: str = "hidden_act") -> EncoderActivation:
    name = text(config, field, "gelu")
    if name not in _ACTIVATIONS:
        raise lacking(config, f"the activation {name!r}")
    return _ACTIVATIONS[name]


def lacking(config: Config, what: str) -> LoadError:
    """The error for a feature that no family computes."""
    name = next(iter(texts(config, "architectures")), "The model")
    return LoadError(
        "UnsupportedModel",
        f"{name} has {what} in its config.json, which encoders here do not compute.",
        hint="Serve another model of its family: docs/models.md lists them.",
        argument="model",
    )


def refuse(config: Config, **computed: object) -> None:
    """Raise LoadError where a field is there and not what is computed, as given by its name."""
    for name, value in computed.items():
        if config.get(name) not in (None, value):
            raise lacking(config, f"{name} {config[name]!r} instead of {value!r}")


def labels(config: Config) -> int:
    return len(table(config, "id2label")) or positive(config, "num_labels", 2)


def attention(config: Config, *, bias: bool, rotates: bool) -> Attention:
    heads, hidden = positive(config, "num_attention_heads"), positive(config, "hidden_size")
    size = positive(config, "head_dim", hidden // heads)
    turned = rope(config, size) if rotates else None
    return Attention(heads, heads, size, turned, size**-0.5, qkv_bias=bias, out_bias=bias)


def encoder(
    config: Config, attention: Attention, mlp: EncoderMlp, classifier: ClassifierSpec | None
) -> EncoderSpec:
    """All layers alike, norms behind them, and no absolute positions; families replace what differs."""
    refuse(config, is_decoder=False, add_cross_attention=False)
    return EncoderSpec(
        architecture=texts(config, "architectures")[0],
        hidden=positive(config, "hidden_size"),
        vocab=positive(config, "vocab_size"),
        layers=(EncoderLayer(attention, mlp),) * positive(config, "num_hidden_layers"),
        norm_eps=number(config, "layer_norm_eps", 1e-12),
        max_position=positive(config, "max_position_embeddings"),
        classifier=classifier,
    )


def classifies(config: Config) -> bool:
    return texts(config, "architectures")[0].endswith("ForSequenceClassification")
