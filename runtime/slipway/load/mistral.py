"""Mistral's own form of a checkpoint: `params.json` beside consolidated safetensors, in its trainer's names.

Both are read as what Hugging Face's form of the same model holds, so that nothing above knows the difference.
Sources: https://github.com/mistralai/mistral-inference for names, fields and the order of rotated rows;
vLLM's reading of `params.json` for the fields that came later (YaRN, fp8, windows by layer).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slipway.load.arrays import Array
from slipway.load.config import Config, positive, table, wrong
from slipway.load.errors import LoadError
from slipway.load.progress import Progress
from slipway.load.safetensors import SafetensorsWeights

PARAMS = "params.json"
_PLACE = f"the model's {PARAMS}"
LENGTH = 128_000
"""Tokens of context where params.json does not say, which it seldom does; vLLM takes the same."""

Kind = tuple[type | tuple[type, ...], str]
WHOLE: Kind = (int, "a whole number above 0")
NUMBER: Kind = ((int, float), "a number")
FLAG: Kind = (bool, "true or false")
TEXT: Kind = (str, "a text")
TABLE: Kind = (dict, "an object")

_RENAMED = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "head_dim": "head_dim",
}
_NEEDED = ("dim", "n_layers", "n_heads", "hidden_dim", "vocab_size")
_FIELDS: Mapping[str, Kind] = {
    **dict.fromkeys(_RENAMED, WHOLE),
    **dict.fromkeys(("max_position_embeddings", "max_seq_len"), WHOLE),
    **dict.fromkeys(("norm_eps", "rope_theta"), NUMBER),
    **dict.fromkeys(("yarn", "moe", "quantization"), TABLE),
    "sliding_window": ((int, list), "a whole number, or a list of one for each layer"),
    "tied_embeddings": FLAG,
    "activation": TEXT,
}
_SAY_NOTHING = {"model_type", "causal", "max_batch_size", "model_parallel", "ragged_attention", "dtype"}
"""Fields that change no number: of training, or true of every model that is read here."""
_YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
_YARN_FIELDS: Mapping[str, Kind] = {**dict.fromkeys(_YARN, NUMBER), "apply_scale": FLAG}
_MOE_FIELDS: Mapping[str, Kind] = dict.fromkeys(("num_experts", "num_experts_per_tok"), WHOLE)
_FP8_FIELDS: Mapping[str, Kind] = dict.fromkeys(("qformat_weight", "qscheme_act"), TEXT)

_TOP = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attention.w{letter}": f"self_attn.{letter}_proj" for letter in "qkvo"},
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "block_sparse_moe.gate",
}
_EXPERT = re.compile(r"feed_forward\.(experts\.\d+\.w[123])")
_FAKE_QUANTIZER = re.compile(r"layers\.(\d+)\.attention\.(kv|k|v|q)_fake_quantizer\.qscale_act")
_PIECES = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}


def config_of(params: Config) -> dict[str, object]:
    """What transformers' `config.json` would say of the model of a `params.json`.

    Raises LoadError for a field that is wrong, or that asks for what we lack.
    """
    if params.get("causal") is False:
        raise _unsupported("rows that see those behind them (causal: false)")
    given = _checked({name: value for name, value in params.items() if name not in _SAY_NOTHING}, _FIELDS)
    _require(given, _NEEDED)
    config: dict[str, object] = {ours: given[theirs] for theirs, ours in _RENAMED.items() if theirs in given}
    window, kinds = _windows(given)
    kind, architecture = ("ministral", "Ministral") if kinds else ("mistral", "Mistral")
    config |= {
        "num_key_value_heads": given.get("n_kv_heads", given["n_heads"]),
        "hidden_act": given.get("activation", "silu"),
        "rms_norm_eps": given.get("norm_eps", 1e-5),
        "tie_word_embeddings": given.get("tied_embeddings", False),
        "max_position_embeddings": given.get("max_position_embeddings", given.get("max_seq_len", LENGTH)),
        "rope_theta": given.get("rope_theta", 10_000.0),
        "sliding_window": window,
        **({"layer_types": kinds} if kinds else {}),
    }
    if yarn := table(given, "yarn"):
        config["rope_scaling"] = _yarn(_checked(yarn, _YARN_FIELDS, "yarn."), yarn.get("apply_scale", True))
    if moe := table(given, "moe"):
        if kinds:
            raise _unsupported("experts beside windows that differ by layer")
        kind, architecture = "mixtral", "Mixtral"
        experts = _checked(moe, _MOE_FIELDS, "moe.")
        _require(experts, _MOE_FIELDS, "moe.")
        config["num_local_experts"] = experts["num_experts"]
        config["num_experts_per_tok"] = experts["num_experts_per_tok"]
    if quantization := table(given, "quantization"):
        config["quantization_config"] = _quantization(quantization)
    return config | {"model_type": kind, "architectures": [f"{architecture}ForCausalLM"]}


class ConsolidatedWeights(SafetensorsWeights):
    """Consolidated safetensors, under Hugging Face's names and with its order of rows."""

    def __init__(self, files: Sequence[Path], config: Config, progress: Progress) -> None:
        """config  Hugging Face's form of the model's configuration, which says where a head ends."""
        super().__init__(files, progress)
        stored = self.entries, self._paths
        self.entries = {our(name): replace(entry, name=our(name)) for name, entry in stored[0].items()}
        self._paths = {our(name): path for name, path in stored[1].items()}
        heads = positive(config, "num_attention_heads")
        kv_heads = positive(config, "num_key_value_heads", heads)
        self._head_dim = positive(config, "head_dim", positive(config, "hidden_size") // heads)
        self._rows = {"q_proj": heads * self._head_dim, "k_proj": kv_heads * self._head_dim}

    def check(self, index: Mapping[str, str]) -> None:
        super().check({our(name): file for name, file in index.items()})

    def view(self, name: str) -> Array:
        """Rows of queries and keys, and what there is one of for each, in halves instead of pairs.

        Rotary embeddings turn numbers 2i and 2i + 1 of a head as the model was trained, and i and
        i + head_dim / 2 as Hugging Face's form and our kernels have it.
        """
        array = super().view(name)
        rows = self._rows.get(name.split(".")[-2]) if "." in name else None
        if rows is None or array.shape[:1] != (rows,):
            return array
        pairs = array.reshape(-1, self._head_dim // 2, 2, *array.shape[1:])
        return pairs.swapaxes(1, 2).reshape(array.shape)


def our(name: str) -> str:
    """Hugging Face's name of a consolidated tensor; the same one where it is not known."""
    if match := _FAKE_QUANTIZER.fullmatch(name):
        return f"model.layers.{match[1]}.self_attn.{match[2]}_scale"
    module, _, piece = name.rpartition(".")
    piece = _PIECES.get(piece, piece)
    if module in _TOP:
        return f"{_TOP[module]}.{piece}"
    layers, _, rest = module.partition(".")
    number_, _, part = rest.partition(".")
    if layers != "layers" or not number_.isdecimal():
        return name
    if match := _EXPERT.fullmatch(part):
        return f"model.layers.{number_}.block_sparse_moe.{match[1]}.{piece}"
    return f"model.layers.{number_}.{_IN_LAYER[part]}.{piece}" if part in _IN_LAYER else name


def _checked(fields: Config, known: Mapping[str, Kind], prefix: str = "") -> dict[str, object]:
    """The fields that say something, each of its kind.

    Raises LoadError for one that is wrong, and for those that nothing here reads: they may change what the
    model computes.
    """
    given = {name: value for name, value in fields.items() if value}
    if unknown := [prefix + name for name in sorted(given.keys() - known.keys())]:
        raise _unsupported(", ".join(unknown))
    for name, value in given.items():
        types, wanted = known[name]
        truth = isinstance(value, bool) and types is not bool
        if not isinstance(value, types) or truth or (isinstance(value, int) and value < 0):
            raise wrong(prefix + name, value, wanted, _PLACE)
    return given


def _require(given: Config, names: Iterable[str], prefix: str = "") -> None:
    """Raise LoadError unless all of these whole numbers are there."""
    for name in names:
        if name not in given:
            raise wrong(prefix + name, None, WHOLE[1], _PLACE)


def _unsupported(what: str) -> LoadError:
    return LoadError(
        "UnsupportedModel",
        f"The model's {PARAMS} asks for {what}, which is not supported in that form.",
        hint="Serve the model's Hugging Face form, with a config.json.",
        argument="config_format",
    )


def _windows(given: Config) -> tuple[int | None, list[str]]:
    """Tokens that layers with a window see, and the kind of each layer where they differ.

    A list is repeated over the layers; null stands for a layer that sees all.
    """
    sizes = given.get("sliding_window")
    if not isinstance(sizes, list):
        return positive(given, "sliding_window") if sizes else None, []
    found = {size for size in sizes if size}
    layers = positive(given, "n_layers")
    if len(found) > 1 or layers % len(sizes) or not all(isinstance(size, int) for size in found):
        raise wrong("sliding_window", sizes, f"one size, repeated evenly over {layers} layers", _PLACE)
    kinds = ["sliding_attention" if size else "full_attention" for size in sizes]
    return (found.pop(), kinds * (layers // len(sizes))) if found else (None, [])


def _yarn(yarn: Config, scaled: object) -> dict[str, object]:
    """scaled  whether cosine and sine have the factor that grows with the stretch"""
    scaling: dict[str, object] = {"rope_type": "yarn"}
    scaling |= {ours: yarn[theirs] for theirs, ours in _YARN.items() if theirs in yarn}
    return scaling if scaled else scaling | {"attention_factor": 1.0}


def _quantization(settings: Config) -> dict[str, object]:
    """Mistral's fp8 as a `quantization_config`."""
    scheme, activations = settings.get("qformat_weight"), settings.get("qscheme_act") or "TENSOR"
    if scheme != "fp8_e4m3" or activations not in ("TENSOR", "NO_SCALES"):
        raise _unsupported(f"the quantization {dict(settings)}")
    _checked(settings, _FP8_FIELDS, "quantization.")
    return {"quant_method": "fp8", "activation_scheme": "static" if activations == "TENSOR" else "dynamic"}
