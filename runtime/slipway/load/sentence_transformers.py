"""What sentence-transformers writes beside a model: how its rows become one vector.

modules.json names the parts in their order: the transformer, the pooling, and what follows it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipway.load.arrays import FP32, Floats, cast
from slipway.load.config import Config, flag, positive, table, text
from slipway.load.errors import LoadError
from slipway.load.folder import read_json
from slipway.load.safetensors import SafetensorsWeights

_MODES = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""How the mode was written before it was a field."""
_OWN = "config_sentence_transformers.json"
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "Sigmoid": "sigmoid"}


@dataclass(frozen=True, slots=True)
class Dense:
    """activation(W · x + b) of a vector."""

    weight: Floats
    """[n, k]"""
    bias: Floats | None
    """[n]"""
    activation: str = "identity"
    """identity, relu, tanh or sigmoid"""


@dataclass(frozen=True, slots=True)
class Sentences:
    """How a folder says that its model is pooled."""

    pooling: str
    """CLS, MEAN or LAST"""
    normalize: bool
    dense: tuple[Path, ...]
    """Folders of layers behind the pooling."""
    max_length: int | None
    """Tokens of a text."""
    warning: str = ""
    """What the folder says of texts that is left to clients, in a sentence."""


def sentences(folder: Path | None) -> Sentences | None:
    """None where a folder is not one of sentence-transformers, or does not pool.

    Raises LoadError for a file that cannot be read, and for a pooling that is not supported.
    """
    if folder is None or not (folder / "modules.json").is_file():
        return None
    pooling, normalize, dense = "", False, []
    for kind, path in _modules(folder / "modules.json"):
        if kind == "Pooling":
            pooling = _pooling(folder / path / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind == "Dense" and pooling and not normalize:
            dense.append(folder / path)
        elif kind != "Transformer":
            raise LoadError(
                "UnsupportedModel",
                f"{folder / 'modules.json'} has a module {kind}, which is not supported.",
                hint="Supported are Transformer, Pooling, Dense and Normalize, in this order.",
            )
    return Sentences(pooling, normalize, tuple(dense), _length(folder), _prompts(folder)) if pooling else None


def score_activation(folder: Path | None) -> str:
    """The module of torch that a CrossEncoder puts a pair's score through; empty where nothing says so."""
    return "" if folder is None else text(_beside(folder / _OWN), "activation_fn", "")


def _beside(file: Path) -> Config:
    """What a file says that a folder may have."""
    return read_json(file) if file.is_file() else {}


def _length(folder: Path) -> int | None:
    """Tokens of a text: newer releases leave it to the tokenizer's own configuration."""
    for file, name in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        known = _beside(folder / file)
        if known.get(name) is not None:
            return positive(known, name)
    return None


def _prompts(folder: Path) -> str:
    """A warning of the words that the model wants before its texts; empty where there are none."""
    file = folder / _OWN
    config = _beside(file)
    named = {name: words for name, words in table(config, "prompts").items() if words}
    if not named:
        return ""
    usual = text(config, "default_prompt_name", "")
    also = f", {usual!r} before every text where nothing else is said" if usual in named else ""
    return (
        "The model was trained with words before its texts, which clients write themselves: "
        f"{', '.join(f'{name} {words!r}' for name, words in named.items())}{also} ({file.name})."
    )


def read_dense(folder: Path) -> Dense:
    """A Dense module. Raises LoadError where its files are missing or of another kind."""
    config = read_json(folder / "config.json")
    name = text(config, "activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise LoadError(
            "UnsupportedModel",
            f"The activation {name} of {folder / 'config.json'} is not supported.",
            hint=f"Supported are {', '.join(_ACTIVATIONS)}.",
        )
    if flag(config, "use_residual"):
        raise LoadError(
            "UnsupportedModel",
            f"{folder / 'config.json'} adds the layer's input to its output (use_residual), which is not "
            "supported.",
            hint="Serve a model without it.",
        )
    file = folder / "model.safetensors"
    if not file.is_file():
        raise LoadError(
            "BadCheckpoint",
            f"{folder} has no model.safetensors, which has its layer's weights.",
            hint="Save the model with a newer sentence-transformers, or fetch it again.",
        )
    files = SafetensorsWeights([file], lambda *_: None)
    shape = positive(config, "out_features"), positive(config, "in_features")
    wanted = {"linear.weight": shape} | ({"linear.bias": shape[:1]} if flag(config, "bias", True) else {})
    found = {name: entry.shape for name, entry in files.entries.items()}
    if found != wanted:
        raise LoadError(
            "BadCheckpoint",
            f"{file} holds {found}, and its config.json asks for {wanted}.",
            hint="Fetch the model again.",
        )
    read = {name: cast(files.view(name), FP32).copy() for name in wanted}
    files.close()
    return Dense(read["linear.weight"], read.get("linear.bias"), _ACTIVATIONS[name])


def _modules(path: Path) -> Sequence[tuple[str, str]]:
    """Kind and folder of each."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [(str(row["type"]).rpartition(".")[2], str(row["path"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LoadError(
            "BadCheckpoint", f"{path} cannot be read as a list of modules: {error!r}.", hint="Fetch it again."
        ) from None


def _pooling(path: Path) -> str:
    config: Config = read_json(path)
    field = config.get("pooling_mode")
    flags = [mode for name, mode in _FLAGS.items() if flag(config, name)]
    asked = flags if field is None else field if isinstance(field, list) else [field]
    if len(asked) != 1 or asked[0] not in _MODES:
        raise LoadError(
            "UnsupportedModel",
            f"{path} asks for {' and '.join(map(str, asked)) or 'no pooling'}.",
            hint=f"Supported is one of {', '.join(_MODES)}.",
        )
    return _MODES[asked[0]]
