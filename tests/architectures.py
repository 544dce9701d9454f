"""Tiny configurations of every architecture, and weights by name and shape, as transformers saves them.

tests/load/test_factory.py holds them to transformers.
"""

from __future__ import annotations

from typing import Any

VOCABULARY = 512

_ALL: dict[str, Any] = {
    "bos_token_id": 0,
    "eos_token_id": 2,
    "initializer_range": 0.08,  # with the usual 0.02 the layers would have no influence at this size
    "pad_token_id": 0,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
_DECODER: dict[str, Any] = _ALL | {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
}
_WINDOWS_OFF: dict[str, Any] = {"max_window_layers": 28, "sliding_window": None, "use_sliding_window": False}
_MOE: dict[str, Any] = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 48,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
_GEMMA: dict[str, Any] = {name: value for name, value in _DECODER.items() if name != "hidden_act"} | {
    "attention_bias": False,
    "head_dim": 20,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 20,
    "sliding_window": 24,
    "tie_word_embeddings": True,
}
_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": {**_DECODER, "attention_bias": False, "head_dim": 16, "mlp_bias": False, "pretraining_tp": 1},
    "mistral": {**_DECODER, "head_dim": 20, "sliding_window": 24},
    "ministral": {
        **_DECODER,
        "head_dim": 24,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "sliding_window": 24,
    },
    "qwen2": {**_DECODER, **_WINDOWS_OFF},
    "qwen3": {**_DECODER, **_WINDOWS_OFF, "attention_bias": False, "head_dim": 20},
    "gemma2": {
        **_GEMMA,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": None,
    },
    "gemma3_text": {
        **_GEMMA,
        "_sliding_window_pattern": 6,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "use_bidirectional_attention": False,
    },
    "mixtral": {
        **_DECODER,
        "head_dim": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "sliding_window": None,
    },
    "qwen2_moe": {
        **_DECODER,
        **_MOE,
        **_WINDOWS_OFF,
        "norm_topk_prob": False,
        "num_experts": 4,
        "qkv_bias": True,
        "shared_expert_intermediate_size": 80,
        "sliding_window": 0,
    },
    "qwen3_moe": {
        **_DECODER,
        **_MOE,
        "attention_bias": False,
        "head_dim": 20,
        "norm_topk_prob": True,
        "num_local_experts": 4,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "opt": {
        **{name: value for name, value in _ALL.items() if name != "initializer_range"},
        "_remove_final_layer_norm": False,
        "activation_function": "relu",
        "attention_dropout": 0.0,
        "do_layer_norm_before": True,
        "dropout": 0.1,
        "enable_bias": True,
        "ffn_dim": 96,
        "hidden_size": 64,
        "init_std": 0.08,
        "layer_norm_elementwise_affine": True,
        "layerdrop": 0.0,
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "tie_word_embeddings": True,
        "word_embed_proj_dim": 64,
    },
    "gpt2": {
        **_ALL,
        "activation_function": "gelu_new",
        "add_cross_attention": False,
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "layer_norm_epsilon": 1e-05,
        "n_embd": 64,
        "n_head": 4,
        "n_inner": None,
        "n_layer": 2,
        "n_positions": 512,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.1,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "tie_word_embeddings": True,
    },
    "phi3": {
        **_DECODER,
        "embd_pdrop": 0.0,
        "original_max_position_embeddings": 4096,
        "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": None,
    },
}
ARCHITECTURES = tuple(_CONFIGURATIONS)
_CLASSES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "ministral": "Ministral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2Moe",
    "qwen3_moe": "Qwen3Moe",
    "opt": "OPT",
    "gpt2": "GPT2",
    "phi3": "Phi3",
}


def configuration(architecture: str, head: str, dtype: str, **overrides: Any) -> dict[str, Any]:
    """The fields of config.json, those that follow from overridden ones too."""
    defaults = _CONFIGURATIONS[architecture]
    config = defaults | overrides | {"model_type": architecture, "dtype": dtype}
    config["architectures"] = [_class(architecture, head)]
    if architecture in ("qwen3_moe", "mixtral") and "num_experts" in config:
        config["num_local_experts"] = config.pop("num_experts")
    if not config.get("use_sliding_window", True):
        config["sliding_window"] = defaults["sliding_window"]
    if "layer_types" not in config and architecture in ("qwen2", "qwen3", "gemma2", "qwen2_moe"):
        sliding = [_slides(config, layer) for layer in range(config["num_hidden_layers"])]
        config["layer_types"] = ["sliding_attention" if one else "full_attention" for one in sliding]
    if architecture == "phi3":
        config["rope_parameters"] = {"partial_rotary_factor": 1.0} | config["rope_parameters"]
    if config.get("use_bidirectional_attention"):
        config["sliding_window"] = config["sliding_window"] // 2 * 2  # of one side it has half
    if labels := config.pop("num_labels", None):
        names = {number: f"LABEL_{number}" for number in range(labels)}
        config["label2id"] = (
            None if "id2label" in config else {name: number for number, name in names.items()}
        )
        config["id2label"] = {str(number): name for number, name in config.get("id2label", names).items()}
    if "layer_types" in config and len(config["layer_types"]) != config["num_hidden_layers"]:
        raise ValueError(f"{config['num_hidden_layers']} layers have {len(config['layer_types'])} types")
    return config


def _class(architecture: str, head: str) -> str:
    if architecture == "gpt2" and head == "ForCausalLM":
        return "GPT2LMHeadModel"
    named = "Gemma3Text" if architecture == "gemma3_text" and not head else _CLASSES[architecture]
    return f"{named}{head or 'Model'}"


def _slides(config: dict[str, Any], layer: int) -> bool:
    if config["model_type"] == "gemma2":
        return layer % 2 == 0
    return config["use_sliding_window"] and layer >= config["max_window_layers"]


Shapes = dict[str, tuple[int, ...]]


def shapes(config: dict[str, Any], head: str) -> Shapes:
    """Name and shape of each stored weight, in the model's order."""
    kind = config["model_type"]
    own = {"opt": _opt, "gpt2": _gpt2}.get(kind, _decoder)(config)
    body = {"gpt2": "transformer."}.get(kind, "model.") if head else ""
    found = {f"{body}{name}": shape for name, shape in own.items()}
    hidden = config.get("hidden_size") or config["n_embd"]
    if head == "ForSequenceClassification":
        found["score.weight"] = (len(config.get("id2label", (0, 1))), hidden)
    elif head and not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    return found


def _linear(name: str, out: int, inner: int, bias: bool) -> Shapes:
    return {f"{name}.weight": (out, inner)} | ({f"{name}.bias": (out,)} if bias else {})


def _decoder(config: dict[str, Any]) -> Shapes:
    hidden = config["hidden_size"]
    found: Shapes = {"embed_tokens.weight": (config["vocab_size"], hidden)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"].startswith("gemma"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for layer in range(config["num_hidden_layers"]):
        parts = _attention(config) | _mlp(config, layer) | {f"{norm}.weight": (hidden,) for norm in norms}
        found |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    return found | {"norm.weight": (hidden,)}


def _attention(config: dict[str, Any]) -> Shapes:
    kind, hidden, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    rows, kv_rows = heads * size, config["num_key_value_heads"] * size
    out = _linear("self_attn.o_proj", hidden, rows, config.get("attention_bias", False))
    if kind == "phi3":
        return _linear("self_attn.qkv_proj", rows + 2 * kv_rows, hidden, False) | out
    bias = config.get("attention_bias", False) or config.get("qkv_bias", kind == "qwen2")
    found: Shapes = {}
    for name, count in (("q", rows), ("k", kv_rows), ("v", kv_rows)):
        found |= _linear(f"self_attn.{name}_proj", count, hidden, bias)
    if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
        out |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    return found | out


def _mlp(config: dict[str, Any], layer: int) -> Shapes:
    kind, hidden, inner = config["model_type"], config["hidden_size"], config["intermediate_size"]
    if kind == "phi3":
        return {"mlp.gate_up_proj.weight": (2 * inner, hidden), "mlp.down_proj.weight": (hidden, inner)}
    experts = config.get("num_local_experts") or config.get("num_experts")
    if kind == "mixtral":
        parts = {"w1": (inner, hidden), "w2": (hidden, inner), "w3": (inner, hidden)}
        place = "block_sparse_moe"
    elif (
        experts
        and layer not in config["mlp_only_layers"]
        and (layer + 1) % config["decoder_sparse_step"] == 0
    ):
        width, place = config["moe_intermediate_size"], "mlp"
        parts = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    else:
        return _gated("mlp", hidden, inner, config.get("mlp_bias", False))
    found: Shapes = {f"{place}.gate.weight": (experts, hidden)}
    for expert in range(experts):
        found |= {f"{place}.experts.{expert}.{name}.weight": shape for name, shape in parts.items()}
    if kind == "qwen2_moe":
        found |= _gated("mlp.shared_expert", hidden, config["shared_expert_intermediate_size"], False)
        found["mlp.shared_expert_gate.weight"] = (1, hidden)
    return found


def _gated(name: str, hidden: int, inner: int, bias: bool) -> Shapes:
    into = _linear(f"{name}.gate_proj", inner, hidden, bias) | _linear(f"{name}.up_proj", inner, hidden, bias)
    return into | _linear(f"{name}.down_proj", hidden, inner, bias)


def _opt(config: dict[str, Any]) -> Shapes:
    hidden, inner = config["hidden_size"], config["ffn_dim"]
    found: Shapes = {
        "decoder.embed_tokens.weight": (config["vocab_size"], hidden),
        "decoder.embed_positions.weight": (config["max_position_embeddings"] + 2, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        parts: Shapes = {}
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            parts |= _linear(f"self_attn.{name}", hidden, hidden, True)
        parts |= _norm("self_attn_layer_norm", hidden)
        parts |= _linear("fc1", inner, hidden, True) | _linear("fc2", hidden, inner, True)
        parts |= _norm("final_layer_norm", hidden)
        found |= {f"decoder.layers.{layer}.{name}": shape for name, shape in parts.items()}
    return found | _norm("decoder.final_layer_norm", hidden)


def _gpt2(config: dict[str, Any]) -> Shapes:
    """Its linear layers are stored by columns: [in, out]."""
    hidden = config["n_embd"]
    inner = config["n_inner"] or 4 * hidden
    found: Shapes = {
        "wte.weight": (config["vocab_size"], hidden),
        "wpe.weight": (config["n_positions"], hidden),
    }
    matrices = {
        "attn.c_attn": (hidden, 3 * hidden),
        "attn.c_proj": (hidden, hidden),
        "mlp.c_fc": (hidden, inner),
        "mlp.c_proj": (inner, hidden),
    }
    for layer in range(config["n_layer"]):
        parts = _norm("ln_1", hidden) | _norm("ln_2", hidden)
        for name, shape in matrices.items():
            parts |= {f"{name}.weight": shape, f"{name}.bias": shape[1:]}
        found |= {f"h.{layer}.{name}": shape for name, shape in parts.items()}
    return found | _norm("ln_f", hidden)


def _norm(name: str, size: int) -> Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}
