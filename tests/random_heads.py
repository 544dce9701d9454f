"""Random heads on a target's hidden states, and what they draft by the definition."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from factory import VOCABULARY
from slipway.engine.config import DraftConfig
from tensor_files import Tensors, save

HIDDEN, HEADS = 64, 4
Array = np.ndarray
Reference = Callable[[Tensors, Array, list[int]], Array]
"""Of the target's last hidden state [hidden] and the tokens behind it, logits of what follows these."""
Draw = Callable[..., Array]
"""Makes random numbers of a shape."""


def drawing(seed: int, scale: float = 0.1) -> Draw:
    random = np.random.default_rng(seed)
    return lambda *shape: random.standard_normal(shape, np.float32) * np.float32(scale)


def medusa_tensors(config: dict[str, Any], random: Draw) -> Tensors:
    tensors: Tensors = {}
    for head in range(HEADS):
        for layer in range(config["num_hidden_layers"]):
            tensors[f"blocks.{head}.layers.{layer}.weight"] = random(HIDDEN, HIDDEN)
            if config.get("medusa_fc_bias"):
                tensors[f"blocks.{head}.layers.{layer}.bias"] = random(HIDDEN)
        if not config.get("original_lm_head") or head == 0:
            tensors[f"lm_heads.{head}.weight"] = random(VOCABULARY, HIDDEN)
    return tensors


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * (1 + np.array([math.erf(one / math.sqrt(2)) for one in x], np.float32)) / 2


def medusa(tensors: Tensors, hidden: Array, said: list[int]) -> Array:
    head, x = len(said) - 1, hidden
    layer = 0
    while f"blocks.{head}.layers.{layer}.weight" in tensors:
        name = f"blocks.{head}.layers.{layer}"
        x = x + silu(tensors[f"{name}.weight"] @ x + tensors.get(f"{name}.bias", 0))
        layer += 1
    return tensors.get(f"lm_heads.{head}.weight", tensors["lm_heads.0.weight"]) @ x


def speculator_tensors(config: dict[str, Any], random: Draw) -> Tensors:
    inner = config["inner_dim"] or HIDDEN
    tensors: Tensors = {}
    for head in range(1 if config["tie_weights"] else HEADS):
        tensors[f"speculator.emb.{head}.weight"] = random(VOCABULARY, inner)
        tensors[f"speculator.head.{head}.weight"] = random(VOCABULARY, inner)
        tensors[f"speculator.ln.{head}.weight"] = 1 + random(inner)
        tensors[f"speculator.ln.{head}.bias"] = random(inner)
    for head in range(2 if config["tie_weights"] else HEADS):
        tensors[f"speculator.proj.{head}.weight"] = random(inner, inner if head else HIDDEN)
    return tensors


def speculator(tensors: Tensors, hidden: Array, said: list[int]) -> Array:
    tied = "speculator.emb.1.weight" not in tensors
    state, logits = hidden, hidden
    if tied:  # which of the two has its input normed is of no matter
        state = state / np.sqrt((state**2).mean() + 1e-6) / math.sqrt(2)
    for head, token in enumerate(said):
        own = 0 if tied else head

        def tensor(kind: str, number: int = own, part: str = "weight") -> Array:
            return tensors[f"speculator.{kind}.{number}.{part}"]

        kept = 0.5 ** (0.5 / HEADS)
        weight = math.sqrt((1 - kept**2) * (len(tensor("ln")) / 2)) / kept
        state = tensor("proj", min(head, 1) if tied else head) @ state + weight * tensor("emb")[token]
        state = state / np.sqrt((state**2).mean() + 1e-6) * tensor("ln") + tensor("ln", part="bias")
        state = gelu(state)
        logits = tensor("head") @ state
    return logits


MEDUSA = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": HIDDEN, "num_heads": HEADS}
MEDUSA |= {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "medusa_fc_bias": True}
ONE_MATRIX = MEDUSA | {"num_hidden_layers": 1, "original_lm_head": True, "medusa_fc_bias": False}
MLP = {"model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": HIDDEN}
MLP |= {
    "inner_dim": 48,
    "vocab_size": VOCABULARY,
    "n_predict": HEADS,
    "tie_weights": True,
    "scale_input": True,
}
UNTIED = MLP | {"inner_dim": 0, "tie_weights": False, "scale_input": False}
KINDS: dict[str, tuple[str, dict[str, Any], Callable[[dict[str, Any], Draw], Tensors], Reference]] = {
    "medusa": ("medusa", MEDUSA, medusa_tensors, medusa),
    "medusa with one matrix": ("medusa", ONE_MATRIX, medusa_tensors, medusa),
    "mlp speculator": ("mlp_speculator", MLP, speculator_tensors, speculator),
    "mlp speculator without ties": ("mlp_speculator", UNTIED, speculator_tensors, speculator),
}


def write_heads(kind: str, place: Path) -> Path:
    """A random checkpoint of a kind."""
    place.mkdir()
    _, config, tensors, _ = KINDS[kind]
    (place / "config.json").write_text(json.dumps(config))
    save(tensors(config, drawing(len(kind))), place / "model.safetensors")
    return place


def guessing(kind: str, folder: Path) -> dict[str, object]:
    return {"draft": DraftConfig(method=KINDS[kind][0], model=str(folder)), "num_drafts": HEADS}
