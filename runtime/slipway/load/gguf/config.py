"""The `config.json` that a GGUF file's metadata amounts to.

Standard library only: the API process reads model facts here too.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from slipway.load.errors import LoadError
from slipway.load.gguf.families import Family, family
from slipway.load.gguf.header import Header

Config = dict[str, object]
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""The file's `general.sampling.*`, by transformers' names."""
_POOLINGS: dict[object, str] = {1: "MEAN", 2: "CLS", 3: "LAST"}
"""The file's numbers of those that make one vector."""


def model_config(header: Header) -> Config:
    """What transformers' `config.json` would say of this model.

    Raises LoadError where the metadata lacks what every model has, or asks for what we lack.
    """
    kind = family(header)
    _check_sizes(header)
    hidden, heads = _integer(header, "embedding_length"), _integer(header, "attention.head_count")
    head_dim = header.get("attention.key_length") or hidden // heads
    config: Config = {
        "model_type": kind.model_type,
        "architectures": [kind.architecture],
        "hidden_size": hidden,
        "num_hidden_layers": _integer(header, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _integer(header, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": _integer(header, "feed_forward_length", 0),
        "max_position_embeddings": _integer(header, "context_length"),
        "rms_norm_eps": _decimal(header.get("attention.layer_norm_rms_epsilon", 1e-6)),
        "vocab_size": _vocabulary(header),
        "rope_theta": _decimal(header.get("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "hidden_act": "silu",
        "dtype": source_dtype(header),
        **_special_tokens(header),
    }
    if (pooling := header.get("pooling_type")) in _POOLINGS:
        config["gguf_pooling_type"] = _POOLINGS[pooling]
    if kind.model_type.startswith("gemma"):
        config |= _gemma(header, kind, config)
    else:
        config |= _llama_like(header, kind)
    return config


def _check_sizes(header: Header) -> None:
    """Raises LoadError where sizes differ from the tensors', or a number makes every result invalid."""
    blocks = {int(name.split(".")[1]) for name in header.tensors if re.match(r"blk\.\d+\.", name)}
    sizes = {
        "embedding_length": _size_of(header, "token_embd.weight", -1),
        "feed_forward_length": _size_of(header, "blk.0.ffn_gate.weight", 0),
        "block_count": len(blocks),
    }
    for key, found in sizes.items():
        said = header.get(key)
        if isinstance(said, int) and found is not None and said != found:
            raise _bad(header, f"{key} is {said}, and the tensors have {found}")
    if not _integer(header, "attention.head_count"):
        raise _bad(header, "attention.head_count is 0")
    for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base"):
        value = header.get(key)
        if isinstance(value, float) and not 0 < value < math.inf:
            raise _bad(header, f"{key} is {value}; a number above 0 is needed")


def _size_of(header: Header, tensor: str, axis: int) -> int | None:
    entry = header.tensors.get(tensor)
    return entry.shape[axis] if entry is not None else None


def _bad(header: Header, why: str) -> LoadError:
    return LoadError(
        "BadCheckpoint",
        f"{header.path}: {header.architecture}.{why}.",
        hint="The file is incomplete or of a kind that is not supported.",
    )


def generation_config(metadata: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """What `generation_config.json` would say of sampling, and the file's settings that are not used."""
    prefix = "general.sampling."
    found = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    known = {_SAMPLING[name]: _decimal(value) for name, value in found.items() if name in _SAMPLING}
    return known, [prefix + name for name in found if name not in _SAMPLING]


def source_dtype(header: Header) -> str:
    """The type of most weights: quantized ones carry less than bfloat16 holds, so count as that."""
    sizes = {"float32": 0, "float16": 0, "bfloat16": 0}
    plain = {"F32": "float32", "F64": "float32", "F16": "float16"}
    for entry in header.tensors.values():
        sizes[plain.get(entry.type.name, "bfloat16")] += math.prod(entry.shape)
    return max(sizes, key=lambda name: sizes[name])


def _llama_like(header: Header, kind: Family) -> Config:
    config: Config = {}
    if kind.model_type in ("llama", "mistral"):
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    if kind.model_type in ("mistral", "mixtral"):
        config["sliding_window"] = header.get("attention.sliding_window")
    if experts := header.get("expert_count"):
        config |= {
            "num_local_experts" if kind.model_type == "mixtral" else "num_experts": experts,
            "num_experts_per_tok": _integer(header, "expert_used_count"),
        }
    if kind.model_type in ("qwen2_moe", "qwen3_moe"):
        config |= {
            "moe_intermediate_size": _integer(header, "expert_feed_forward_length"),
            "norm_topk_prob": bool(header.get("expert_weights_norm", kind.model_type == "qwen3_moe")),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if kind.model_type == "qwen2_moe":
        shared = header.get("expert_shared_feed_forward_length")
        if shared is None:  # older files: the tensor knows
            shared = header.tensors["blk.0.ffn_up_shexp.weight"].shape[0]
        config["shared_expert_intermediate_size"] = shared
    return config


def _gemma(header: Header, kind: Family, config: Config) -> Config:
    """What Gemma's code has beyond Llama's; llama.cpp leaves out what follows from the size."""
    extra: Config = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
    if kind.model_type == "gemma":
        return extra
    layers = _integer(header, "block_count")
    # The 27B models scale by hidden/heads, all others by the head size.
    largest = 46 if kind.model_type == "gemma2" else 62
    hidden, heads = _integer(header, "embedding_length"), _integer(header, "attention.head_count")
    extra["query_pre_attn_scalar"] = hidden // heads if layers == largest else config["head_dim"]
    extra["sliding_window"] = _integer(header, "attention.sliding_window", 4096)
    extra["attn_logit_softcapping"] = _decimal(header.get("attn_logit_softcapping"))
    extra["final_logit_softcapping"] = _decimal(header.get("final_logit_softcapping"))
    if kind.model_type == "gemma3_text":
        extra["rope_local_base_freq"] = _decimal(header.get("rope.freq_base_swa", 10000.0))
        extra["rope_theta"] = _decimal(header.get("rope.freq_base", 1000000.0))
    default = 2 if kind.model_type == "gemma2" else 6
    pattern = header.get("attention.sliding_window_pattern", default)
    sliding = (
        [bool(layer) for layer in pattern]
        if isinstance(pattern, Sequence)
        else [(layer + 1) % int(str(pattern)) != 0 for layer in range(layers)]
    )
    extra["layer_types"] = ["sliding_attention" if s else "full_attention" for s in sliding]
    return extra


def _rope_scaling(header: Header) -> Config | None:
    kind = header.get("rope.scaling.type", "none")
    factor = _decimal(header.get("rope.scaling.factor", header.get("rope.scale_linear")))
    original = header.get("rope.scaling.original_context_length")
    if "rope_freqs.weight" in header.tensors:
        return _llama3_scaling(header)
    if kind == "linear" or (kind == "none" and factor not in (None, 1.0)):
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        length = {} if original is None else {"original_max_position_embeddings": original}
        return {"rope_type": "yarn", "factor": factor, **length}
    if kind == "none":
        return None
    raise LoadError(
        "UnsupportedModel",
        f"{header.path} scales its rotary embedding by {kind!r}, which is not supported.",
        hint="Use the model's safetensors checkpoint.",
    )


def _llama3_scaling(header: Header) -> Config:
    """Llama 3.1's scaling, which GGUF keeps as the divisors it amounts to.

    The parameters are always factor (the last divisor), 1, 4 and 8192; that they give the stored
    divisors is checked.
    """
    entry = header.tensors["rope_freqs.weight"]
    with entry.path.open("rb") as file:
        file.seek(entry.offset)
        divisors = struct.unpack(f"<{math.prod(entry.shape)}f", file.read(entry.nbytes))
    theta = float(str(_decimal(header.get("rope.freq_base", 10000.0))))
    low, high, original, factor = 1.0, 4.0, 8192, round(divisors[-1], 4)
    for index, divisor in enumerate(divisors):
        wavelength = 2 * math.pi * theta ** (index / len(divisors))
        smooth = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        if not math.isclose(divisor, 1 / ((1 - smooth) / factor + smooth), rel_tol=1e-3):
            raise LoadError(
                "UnsupportedModel",
                f"{header.path} divides its rotary frequencies in a way that is not Llama 3.1's.",
                hint="Use the model's safetensors checkpoint.",
            )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _special_tokens(header: Header) -> Config:
    theirs = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    found = {ours: header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name, ours in theirs.items()}
    return {name: token for name, token in found.items() if token is not None}


def _vocabulary(header: Header) -> int:
    """Rows of the embedding: the metadata may count tokens without padding."""
    if "token_embd.weight" in header.tensors:
        return header.tensors["token_embd.weight"].shape[0]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, Sequence) else _integer(header, "vocab_size")


def _integer(header: Header, key: str, default: int | None = None) -> int:
    value = header.get(key, default)
    if isinstance(value, Sequence) and len(set(value)) == 1:  # one value a layer
        value = value[0]
    if not isinstance(value, int) or value < 0:
        raise _bad(header, f"{key} is {value!r}; one number is needed")
    return value


def _decimal(value: object) -> object:
    """A float32 as the decimal that was meant: 9.999999747378752e-06 → 1e-05."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    short = float(f"{value:.7g}")
    return short if struct.pack("<f", short) == struct.pack("<f", value) else value
