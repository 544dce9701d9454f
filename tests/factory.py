"""Tiny random models of every architecture, made on the spot and saved as real ones are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from architectures import ARCHITECTURES as ARCHITECTURES
from architectures import VOCABULARY as VOCABULARY
from architectures import configuration, shapes
from tensor_files import Tensors, pickle, save

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TOKENIZER = Path(__file__).parent / "data" / "tokenizer.json"
_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def model_folders(root: Path, variants: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Callable[[str], Path]:
    """Finds the folder of a variant, an architecture with sizes; each is made when it is first asked for."""

    def folder(variant: str) -> Path:
        architecture, overrides = variants[variant]
        place = root / variant
        return place if place.exists() else make_model(architecture, place, **overrides)

    return folder


def make_model(
    architecture: str,
    folder: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    safetensors: bool = True,
    head: str = "ForCausalLM",
    **overrides: Any,
) -> Path:
    """Write a random model with its tokenizer, and return `folder`.

    shards       least number of weight files, with an index where there are several
    safetensors  or else PyTorch's own file, which needs torch
    head         of the class: ForCausalLM, ForSequenceClassification or "" for none
    overrides    fields of the transformers configuration (hidden 64, 2 to 4 layers, GQA 4/2)
    """
    config = configuration(architecture, head, dtype, **overrides)
    weights = {name: one.astype(_DTYPES[dtype]) for name, one in _drawn(config, head, seed)}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", config)
    if head == "ForCausalLM":
        _write(folder / "generation_config.json", _generation(config))
    if safetensors:
        _save(weights, folder, shards)
    else:
        pickle(weights, folder / "pytorch_model.bin")
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Save a byte-level BPE tokenizer of 512 tokens, with a chat template, into `folder`."""
    (folder / "tokenizer.json").write_text(_TOKENIZER.read_text())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "pad_token": _SPECIAL[0],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    _write(folder / "tokenizer_config.json", settings)


def _drawn(config: Mapping[str, Any], head: str, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Each weight by name: normally distributed, as transformers draws them, but for norms and biases.

    Norms at exactly 1 and biases at 0 would hide mistakes. An output matrix that is not the embedding is four
    times as large, so that one token is far likelier than the others.
    """
    random = np.random.default_rng(seed)
    spread = config.get("initializer_range") or config["init_std"]
    for name, shape in shapes(config, head).items():
        values = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            yield name, values * np.float32(0.1) + np.float32(_is_scale(config, name))
            continue
        values *= np.float32(spread)
        if name == "lm_head.weight":
            values *= 4
        elif name.endswith("embed_tokens.weight") and config["pad_token_id"] is not None:
            values[config["pad_token_id"]] = 0
        elif config["model_type"] == "gpt2" and name.endswith("c_proj.weight"):
            values /= np.float32(math.sqrt(2 * config["n_layer"]))
        yield name, values


def _is_scale(config: Mapping[str, Any], name: str) -> bool:
    """Whether a vector multiplies, as it is: a norm's weights, but for Gemma's norms, which add 1 to them."""
    return name.endswith(".weight") and not config["model_type"].startswith("gemma")


def _save(weights: Tensors, folder: Path, count: int) -> None:
    """In one file, or in at least `count` with an index."""
    total = sum(one.nbytes for one in weights.values())
    parts: list[Tensors] = [{}]
    for name, one in weights.items():
        if sum(other.nbytes for other in parts[-1].values()) + one.nbytes > -(-total // count) + 1:
            parts.append({})
        parts[-1][name] = one
    if len(parts) == 1:
        save(weights, folder / "model.safetensors")
        return
    placed: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        placed |= dict.fromkeys(part, file)
        save(part, folder / file)
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    _write(folder / "model.safetensors.index.json", index)


def _generation(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: config[name] for name in ("bos_token_id", "pad_token_id", "use_cache")}
    fixed = {"_from_model_config": True, "output_attentions": False, "output_hidden_states": False}
    return fixed | kept | {"eos_token_id": [config["eos_token_id"]]}


def _write(file: Path, fields: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(dict(sorted(fields.items())), indent=2) + "\n")
