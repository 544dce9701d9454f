"""Adapters of every form that PEFT writes, and the weights of a model with them merged in."""

from __future__ import annotations

import json
import zlib
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from slipway.engine.messages import AdapterRef

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


class Made:
    """An adapter in the making, and the weights of the model with it merged in."""

    def __init__(self, model: Path, folder: Path, *, seed: int = 0, **config: Any) -> None:
        self.model, self.folder = model, folder
        self.config: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
        self.weights = load_file(model / "model.safetensors")
        self.tensors: dict[str, torch.Tensor] = {}
        self.draw = torch.Generator().manual_seed(seed)

    def scaling(self, rank: int, alpha: float | None = None) -> float:
        share = sqrt(rank) if self.config.get("use_rslora") else rank
        return (alpha or self.config["lora_alpha"]) / share

    def random(self, *shape: int, scale: float) -> torch.Tensor:
        return torch.randn(shape, generator=self.draw) * scale

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

    def save(self, *, pickled: bool = False) -> AdapterRef:
        self.folder.mkdir()
        (self.folder / "adapter_config.json").write_text(json.dumps(self.config))
        if pickled:
            torch.save(self.tensors, self.folder / "adapter_model.bin")
        else:
            save_file(self.tensors, self.folder / "adapter_model.safetensors")
        return AdapterRef(1 + zlib.crc32(str(self.folder).encode()), self.folder.name, str(self.folder))

    def merged(self) -> Path:
        folder = self.folder.with_name(f"{self.folder.name}-merged")
        folder.mkdir()
        (folder / "config.json").write_text((self.model / "config.json").read_text())
        save_file(self.weights, folder / "model.safetensors")
        return folder
