"""Folders of low-rank adapters, as PEFT saves them, made without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def lora_folder(model: Path, folder: Path, *, rank: int = 4, seed: int = 0, **config: Any) -> Path:
    """Random factors for each linear layer of a model in fp32, large enough to change any text."""
    random = np.random.default_rng(seed)
    factors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem.endswith(MODULES):
            rows, columns = weight.shape
            a, b = random.standard_normal((rank, columns)), random.standard_normal((rows, rank))
            prefix = f"base_model.model.{stem}"
            factors[f"{prefix}.lora_A.weight"] = (a * columns**-0.5).astype(np.float32)
            factors[f"{prefix}.lora_B.weight"] = (b * 0.2).astype(np.float32)
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(MODULES)}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder
