"""What most families share: Llama's names and the fields of `config.json` that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipway.load.config import Config, flag, integer, integers, number, positive, text, texts
from slipway.load.errors import LoadError
from slipway.model.rope import rope
from slipway.model.spec import Activation, Attention, DecoderSpec, Layer, Mlp

LLAMA_NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "score": "score",
    "score_0": "score.0",
    "score_1": "score.2",
    "attention_norm": "model.layers.{}.input_layernorm",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "out": "model.layers.{}.self_attn.o_proj",
    "q_norm": "model.layers.{}.self_attn.q_norm",
    "k_norm": "model.layers.{}.self_attn.k_norm",
    "mlp_norm": "model.layers.{}.post_attention_layernorm",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}
SANDWICH_NAMES = LLAMA_NAMES | {
    "attention_post_norm": "model.layers.{}.post_attention_layernorm",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
    "mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
}

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


def num_layers(config: Config) -> int:
    return positive(config, "num_hidden_layers")


def head_dim(config: Config) -> int:
    return positive(
        config, "head_dim", positive(config, "hidden_size") // positive(config, "num_attention_heads")
    )


def activation(config: Config, field: str = "hidden_act") -> Activation:
    name = text(config, field, "silu")
    if name not in _ACTIVATIONS:
        raise LoadError(
            "UnsupportedModel",
            f"The model's activation {name!r} has no kernel here.",
            hint="Use --model-impl transformers.",
            argument="model_impl",
        )
    return _ACTIVATIONS[name]


def attention(config: Config) -> Attention:
    """Attention of a layer as in Llama; families replace what differs."""
    heads, size = positive(config, "num_attention_heads"), head_dim(config)
    kv_heads = positive(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise LoadError(
            "BadCheckpoint",
            f"The {heads} attention heads cannot share {kv_heads} key-value heads evenly.",
            hint="num_attention_heads must be a multiple of num_key_value_heads.",
            argument="hf_overrides",
        )
    return Attention(heads, kv_heads, size, rope(config, size), scale=size**-0.5)


def gated_mlp(config: Config) -> Mlp:
    return Mlp(positive(config, "intermediate_size"), activation(config))


def layer_types(config: Config, slides: Callable[[int], bool]) -> tuple[str, ...]:
    """`full_attention` or `sliding_attention` for each layer; where config.json is silent, `slides` says."""
    kinds = "full_attention", "sliding_attention"
    types = texts(config, "layer_types") or tuple(kinds[slides(layer)] for layer in range(num_layers(config)))
    unknown = set(types).difference(kinds)
    if len(types) != num_layers(config) or unknown:
        raise LoadError(
            "BadCheckpoint",
            f"layer_types in the model's config.json names {len(types)} layers of {num_layers(config)}"
            + (f", some of them {', '.join(sorted(unknown))}." if unknown else "."),
            hint="One full_attention or sliding_attention is needed for each layer.",
            argument="hf_overrides",
        )
    return types


def sliding_window(config: Config, layer_type: str = "sliding_attention") -> int:
    """Tokens that a layer of this type sees; 0 for all, which a null window means too."""
    window = integer(config, "sliding_window", 0) if layer_type == "sliding_attention" else 0
    if window and sees_both_ways(config):
        raise LoadError(
            "UnsupportedModel",
            f"Tokens of this model see those behind them, and sliding_window is {window}: how far it reaches "
            "to each side is known of Gemma 3 alone.",
            hint="Serve a model whose layers all see the whole text, or whose attention is causal.",
        )
    return window


def sees_both_ways(config: Config) -> bool:
    """Whether rows see those behind them, too."""
    return flag(config, "use_bidirectional_attention") or not flag(config, "is_causal", True)


def decoder(config: Config, layers: Sequence[Layer]) -> DecoderSpec:
    """The whole decoder as in Llama; families replace what differs."""
    return DecoderSpec(
        architecture=texts(config, "architectures")[0],
        hidden=positive(config, "hidden_size"),
        vocab=positive(config, "vocab_size"),
        layers=tuple(layers),
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        max_position=positive(config, "max_position_embeddings", 2048),
        tied_embedding=flag(config, "tie_word_embeddings"),
        eos_token_ids=integers(config, "eos_token_id"),
        both_ways=sees_both_ways(config),
    )
