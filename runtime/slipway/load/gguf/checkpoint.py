"""A GGUF file (or its parts) as a checkpoint with the names and shapes of Hugging Face's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from slipway.load.errors import LoadError
from slipway.load.gguf.config import generation_config, model_config, source_dtype
from slipway.load.gguf.dequantize import dequantize
from slipway.load.gguf.families import family
from slipway.load.gguf.header import Header, TensorEntry, read
from slipway.load.mapped import MappedFile
from slipway.load.progress import Progress

_IN_THE_CONFIG = frozenset({"rope_freqs.weight"})


class GgufCheckpoint:
    """Weights dequantized to what the Hugging Face checkpoint of the same model would hold."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self.header: Header = read(path)
        self.family = family(self.header)
        self.config = model_config(self.header)
        self.generation_config = generation_config(self.header)
        self.source_dtype = source_dtype(self.header)
        self.folder: Path | None = None
        self._progress = progress
        self._entries = [entry for name, entry in self.header.tensors.items() if name not in _IN_THE_CONFIG]
        self.total_bytes = sum(entry.nbytes for entry in self._entries)
        self._names = {entry.name: self._name(entry) for entry in self._entries}
        self._files = {
            part: MappedFile(part) for part in dict.fromkeys(entry.path for entry in self._entries)
        }

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and weights, one tensor after another; those that need no change are views."""
        done = 0
        for entry in self._entries:
            file = self._files[entry.path]
            raw = file.view(entry.offset, entry.nbytes)
            weights = self._restored(entry, raw, dtype)
            name = self._names[entry.name]
            if "{}" in name:
                for expert, rows in enumerate(weights):  # [experts, out, in]
                    yield name.format(expert), rows
            else:
                yield name, weights
            file.release(entry.offset, entry.nbytes)
            done += entry.nbytes
            self._progress("load", done, self.total_bytes)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _name(self, entry: TensorEntry) -> str:
        name = self.family.rename(entry.name)
        if name is None:
            raise LoadError(
                "BadCheckpoint",
                f"{entry.path}: the tensor {entry.name} is not one of a {self.header.architecture} model's.",
                hint="The model may be newer than this version; use its safetensors checkpoint.",
                argument="model",
            )
        return name

    def _restored(self, entry: TensorEntry, raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The weights, with what llama.cpp's conversion did to them undone."""
        if self.family.norm_plus_one and entry.name.endswith("norm.weight"):
            return (dequantize(entry.type, raw, entry.shape, torch.float32) - 1).to(dtype)
        weights = dequantize(entry.type, raw, entry.shape, dtype)
        if entry.name.endswith("ffn_gate_inp_shexp.weight"):
            return weights.reshape(1, -1)
        if self.family.paired_rope and ".attn_q." in entry.name:
            return _half_split(weights, int(str(self.config["num_attention_heads"])))
        if self.family.paired_rope and ".attn_k." in entry.name:
            return _half_split(weights, int(str(self.config["num_key_value_heads"])))
        return weights


def _half_split(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder each head's rows from pairs (0, h, 1, h+1, …) to halves (0, 1, …, h, h+1, …).

    rows [heads · head_dim, ...]
    """
    paired = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return paired.transpose(1, 2).reshape(rows.shape)
