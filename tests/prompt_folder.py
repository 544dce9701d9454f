"""Folders of prompt adapters, as PEFT saves them, made without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def prompt_folder(
    folder: Path, tokens: int = 5, hidden: int = 64, *, seed: int = 0, scale: float = 0.3, **config: Any
) -> Path:
    """Random rows, large enough to change any text."""
    rows = np.random.default_rng(seed).standard_normal((tokens, hidden)) * scale
    folder.mkdir()
    save_file({"prompt_embeddings": rows.astype(np.float32)}, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "PROMPT_TUNING",
        "task_type": "CAUSAL_LM",
        "num_virtual_tokens": tokens,
        "token_dim": hidden,
        "num_transformer_submodules": 1,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder
