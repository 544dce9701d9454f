"""Adapters with rows of tokens of their own, or a longer context, and the models that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from adapter_runs import adapter, merged
from made_adapter import LINEAR, PREFIX, Made
from slipway.engine.messages import AdapterRef
from tensor_files import load, pickle, save

ADDED = 5


class Resized(Made):
    """An adapter whose model got rows of more tokens, or other rows, before it was trained."""

    def matrices(self) -> tuple[str, str]:
        """Names of the embedding and the head."""
        return "model.embed_tokens.weight", "lm_head.weight"

    def resize(self, added: int = ADDED, *, changed: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
        """Both matrices, with new rows that are likelier to be drawn than others."""
        embedding, head = self.matrices()
        found = {}
        for name in (embedding, head):
            matrix = self.weights.get(name, self.weights[embedding]).copy()
            matrix[list(changed)] = self.random(len(changed), matrix.shape[1], scale=0.4)
            rows = self.random(added, matrix.shape[1], scale=1.0)
            found[name] = self.weights[name] = np.concatenate((matrix, rows))
        return found

    def merged(self) -> Path:
        folder = super().merged()
        config = json.loads((folder / "config.json").read_text())
        config |= {"vocab_size": len(self.weights[self.matrices()[0]]), "tie_word_embeddings": False}
        (folder / "config.json").write_text(json.dumps(config))
        return folder


def whole(model: Path, folder: Path, **fields: Any) -> tuple[AdapterRef, Path]:
    """As PEFT saves a resized model's adapter; and the model that it stands for."""
    made = Resized(model, folder)
    rows = made.resize(**fields)
    made.tensors |= {f"{PREFIX}{name}": matrix for name, matrix in rows.items()}
    _linear(made)
    return made.save(), made.merged()


def new_embeddings(
    model: Path, folder: Path, *, head: bool = True, pickled: bool = False
) -> tuple[AdapterRef, Path]:
    """As vLLM's older form has it."""
    made = Resized(model, folder)
    matrices = made.resize()
    _linear(made)
    ref = made.save()
    names = ("input_embeddings", "output_embeddings")
    rows = dict(zip(names, (one[-ADDED:].copy() for one in matrices.values()), strict=True))
    if not head:
        del rows["output_embeddings"]
    if pickled:
        pickle(rows, folder / "new_embeddings.bin")
    else:
        save(rows, folder / "new_embeddings.safetensors")
    return ref, made.merged()


def _linear(made: Made) -> None:
    for name in [name for name in made.weights if name.endswith(tuple(f"{one}.weight" for one in LINEAR))]:
        made.linear(name.removesuffix(".weight"))


def vocab_of(model: Path) -> int:
    return len(load(model / "model.safetensors")["model.embed_tokens.weight"])


def stretched(base: Path, folder: Path, factor: float, length: int) -> tuple[Path, Path]:
    """An adapter for that length, and the model that it stands for."""
    added = adapter(base, folder, context_length=length)
    whole = merged(base, added, folder.with_name(f"{folder.name}-merged"))
    config = json.loads((whole / "config.json").read_text())
    config.pop("rope_parameters", None)
    config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    (whole / "config.json").write_text(json.dumps(config))
    return added, whole
