"""Adapters of every form that PEFT writes, and the weights of a model with them merged in."""

from __future__ import annotations

import json
import zlib
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from slipway.engine.messages import AdapterRef
from tensor_files import load, pickle, save

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


class Made:
    """An adapter in the making, and the weights of the model with it merged in."""

    def __init__(self, model: Path, folder: Path, *, seed: int = 0, **config: Any) -> None:
        self.model, self.folder = model, folder
        self.config: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
        self.weights = load(model / "model.safetensors")
        self.tensors: dict[str, np.ndarray] = {}
        self.draw = np.random.default_rng(seed)

    def scaling(self, rank: int, alpha: float | None = None) -> float:
        share = sqrt(rank) if self.config.get("use_rslora") else rank
        return (alpha or self.config["lora_alpha"]) / share

    def random(self, *shape: int, scale: float) -> np.ndarray:
        return self.draw.standard_normal(shape, np.float32) * np.float32(scale)

    def linear(self, module: str, rank: int = 4, alpha: float | None = None, *, bias: bool = False) -> None:
        weight = self.weights[f"{module}.weight"]
        a, b = self.random(rank, weight.shape[1], scale=weight.shape[1] ** -0.5), None
        b = self.random(weight.shape[0], rank, scale=0.2 / sqrt(rank))
        self.tensors |= {f"{PREFIX}{module}.lora_A.weight": a, f"{PREFIX}{module}.lora_B.weight": b}
        scaling = self.scaling(rank, alpha)
        self.weights[f"{module}.weight"] = weight + scaling * (b @ a)
        if bias:
            added = self.random(weight.shape[0], scale=0.3)
            self.tensors[f"{PREFIX}{module}.lora_B.bias"] = added
            self.weights[f"{module}.bias"] = self.weights[f"{module}.bias"] + scaling * added

    def embedding(self, module: str = "model.embed_tokens", rank: int = 4) -> None:
        weight = self.weights[f"{module}.weight"]
        a, b = self.random(rank, weight.shape[0], scale=0.2), self.random(weight.shape[1], rank, scale=0.2)
        self.tensors |= {f"{PREFIX}{module}.lora_embedding_A": a, f"{PREFIX}{module}.lora_embedding_B": b}
        self.weights[f"{module}.weight"] = weight + self.scaling(rank) * (b @ a).T

    def everywhere(self, rank: int = 4) -> Made:
        """Factors of all linear layers, those of experts too, of the embedding and the head."""
        for name in list(self.weights):
            if name.endswith(tuple(f"{one}.weight" for one in (*LINEAR, "w1", "w2", "w3"))):
                self.linear(name.removesuffix(".weight"), rank)
        self.linear("lm_head", rank)
        self.embedding(rank=rank)
        return self

    def experts(self, module: str, rank: int, alpha: float | None = None, *, crossed: bool = False) -> None:
        """All experts' factors in two tensors, one row of A's beneath and one column of B's beside the other.

        This is `ParamWrapper.get_delta_weight` of PEFT 0.21 (peft/tuners/lora/layer.py), and `crossed` that
        of releases before 0.19.1, which take a tensor's [experts, out, in] for [experts, in, out]. `module`
        is the tensor as transformers names it.
        """
        parameter = module.rpartition(".")[2]
        wrapper = self.wrapper(module)
        roles = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}[parameter]
        names = [self.of_experts(module, role) for role in roles]
        count, n, k = (
            len(names[0]),
            len(roles) * len(self.weights[names[0][0]]),
            self.weights[names[0][0]].shape[1],
        )
        shape = (n, k) if crossed else (k, n)
        a = self.random(count * rank, shape[0], scale=shape[0] ** -0.5)
        b = self.random(shape[1], rank * count, scale=0.4 / sqrt(rank))
        self.tensors |= {f"{PREFIX}{wrapper}.lora_A.weight": a, f"{PREFIX}{wrapper}.lora_B.weight": b}
        by_expert = a.reshape(count, -1, a.shape[1]), b.reshape(b.shape[0], -1, count)
        equation = "ore,eri->eio" if crossed else "ore,eri->eoi"
        delta = np.einsum(equation, by_expert[1], by_expert[0]) * self.scaling(rank, alpha)
        for part, own in zip(np.split(delta, len(roles), 1), names, strict=True):
            for added, name in zip(part, own, strict=True):
                self.weights[name] = self.weights[name] + added

    def wrapper(self, module: str) -> str:
        """The name of the module that wraps the one with this tensor, of the two that may."""
        experts, _, parameter = module.rpartition(".")
        both = len(self.config["target_parameters"]) == 2
        return f"{experts}.base_layer" if both and parameter == "gate_up_proj" else experts

    def of_experts(self, module: str, role: str) -> list[str]:
        """The names in the file of one matrix of each expert."""
        layer = module.split(".")[2]
        leaf = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}[role]
        found = [
            name
            for name in self.weights
            if name.startswith(f"model.layers.{layer}.")
            and ".experts." in name
            and name.removesuffix(".weight").endswith(leaf)
        ]
        return sorted(found, key=lambda name: int(name.split(".experts.")[1].split(".")[0]))

    def save(self, *, pickled: bool = False) -> AdapterRef:
        self.folder.mkdir()
        (self.folder / "adapter_config.json").write_text(json.dumps(self.config))
        if pickled:
            pickle(self.tensors, self.folder / "adapter_model.bin")
        else:
            save(self.tensors, self.folder / "adapter_model.safetensors")
        return AdapterRef(1 + zlib.crc32(str(self.folder).encode()), self.folder.name, str(self.folder))

    def merged(self) -> Path:
        folder = self.folder.with_name(f"{self.folder.name}-merged")
        folder.mkdir()
        (folder / "config.json").write_text((self.model / "config.json").read_text())
        save(self.weights, folder / "model.safetensors")
        return folder


def of_ranks(model: Path, folder: Path, *ranks: int) -> list[AdapterRef]:
    """Adapters to all linear layers, one after another of each of these ranks in turn; with biases."""
    refs = []
    for number in range(len(ranks)):
        made = Made(model, folder / str(number), seed=number)
        ends = tuple(f"{one}.weight" for one in LINEAR)
        modules = [name.removesuffix(".weight") for name in made.weights if name.endswith(ends)]
        rank_of = made.config["rank_pattern"] = {}
        for at, module in enumerate(modules):
            rank_of[module] = ranks[(number + at) % len(ranks)]
            made.linear(module, rank_of[module])
            rows = len(made.weights[f"{module}.weight"])
            made.tensors[f"{PREFIX}{module}.lora_B.bias"] = made.random(rows, scale=0.1)
        refs.append(made.save())
    return refs
