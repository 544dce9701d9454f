"""A GGUF file (or its parts) as a checkpoint with the names and shapes of Hugging Face's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from slipway.load.arrays import FP32, Array, DType, Ints, cast
from slipway.load.cut import Cut, Stored
from slipway.load.errors import LoadError
from slipway.load.gguf.config import model_config, source_dtype
from slipway.load.gguf.dequantize import dequantize
from slipway.load.gguf.families import family
from slipway.load.gguf.grouped import FORMS, blocks
from slipway.load.gguf.header import Header, TensorEntry, read
from slipway.load.mapped import MappedFile
from slipway.load.progress import Progress
from slipway.load.quantized.form import Form
from slipway.load.quantized.tensors import Quantized

_IN_THE_CONFIG = "rope_freqs.weight"
_HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


class GgufCheckpoint:
    """Weights as the Hugging Face checkpoint of the same model would hold them, or packed as they are."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self.header: Header = read(path)
        self.family = family(self.header)
        self.config = model_config(self.header)
        self.source_dtype = source_dtype(self.header)
        self.folder: Path | None = None
        self.quantization = "gguf"
        self._progress = progress
        self._entries = [entry for name, entry in self.header.tensors.items() if name != _IN_THE_CONFIG]
        self.total_bytes = sum(entry.nbytes for entry in self._entries)
        self._names = {entry.name: self._name(entry) for entry in self._entries}
        self.decoded: Mapping[str, tuple[str, float]] = {
            name: (entry.type.name, 8 * entry.type.block_bytes / entry.type.block_size)
            for entry in self._entries
            if entry.type.block_size > 1 and len(entry.shape) > 1 and not _stays_packed(entry)
            for name in self._matrix_names(entry)
        }
        self._files = {
            part: MappedFile(part) for part in dict.fromkeys(entry.path for entry in self._entries)
        }

    def forms(self) -> Mapping[str, Form]:
        """The matrices of types that products can read packed."""
        packed = [entry for entry in self._entries if _stays_packed(entry)]
        return {name: FORMS[entry.type.name] for entry in packed for name in self._matrix_names(entry)}

    def stored(self, dtype: DType) -> Iterator[tuple[str, Stored]]:
        """Name and weights as they are, but for blocks that `forms` does not name: those come in `dtype`."""
        done = 0
        for entry in self._entries:
            file = self._files[entry.path]
            yield from self._matrices(entry, file.view(entry.offset, entry.nbytes), dtype)
            file.release(entry.offset, entry.nbytes)
            done += entry.nbytes
            self._progress("load", done, self.total_bytes)

    def _matrices(self, entry: TensorEntry, raw: Array, dtype: DType) -> Iterator[tuple[str, Stored]]:
        """The tensor, or each expert's; rows are cut before their blocks are decoded, columns after that."""
        names = self._matrix_names(entry)
        as_row = entry.name.endswith("ffn_gate_inp_shexp.weight")
        stacked = "{}" in self._names[entry.name]
        shape = (1, *entry.shape) if as_row else entry.shape[1:] if stacked else entry.shape
        of_rows = raw.reshape(len(names), shape[0] if len(shape) > 1 else 1, -1)
        order = self._row_order(entry)
        for name, rows in zip(names, of_rows, strict=True):

            def read(cut: Cut, rows: Array = rows) -> Array | Quantized:
                kept = Cut(cut.rows if order is None else order[cut.rows], cut.columns)
                if len(shape) == 1:
                    vector: Array = kept.of(self._restored(entry, rows, shape, dtype))
                    return vector
                part = np.ascontiguousarray(rows[kept.rows])
                if _stays_packed(entry):
                    return blocks(entry.type.name, part).cut(Cut(columns=cut.columns))
                place = len(part), shape[1]
                return self._restored(entry, part, place, dtype)[:, cut.columns]

            yield name, Stored(shape, read)

    def _matrix_names(self, entry: TensorEntry) -> list[str]:
        """The checkpoint's name; where a tensor holds all experts of a layer, that of each."""
        name = self._names[entry.name]
        return [name.format(expert) for expert in range(entry.shape[0])] if "{}" in name else [name]

    def kv_scales(self) -> Mapping[int, tuple[float, float]]:
        return {}

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
            )
        return name

    def _restored(self, entry: TensorEntry, raw: Array, shape: tuple[int, ...], dtype: DType) -> Array:
        """Plain weights; norms as the checkpoint has them."""
        if self.family.norm_plus_one and entry.name.endswith("norm.weight"):
            return cast(dequantize(entry.type, raw.reshape(-1), shape, FP32), FP32) - np.float32(1)
        return dequantize(entry.type, raw.reshape(-1), shape, dtype)

    def _row_order(self, entry: TensorEntry) -> Ints | None:
        """For a file that has each head's rows as pairs (0, h, 1, h+1, …): those of the halves, in order."""
        heads = _HEADS.get(entry.name.split(".")[-2])
        if heads is None or not self.family.paired_rope:
            return None
        paired = np.arange(entry.shape[0], dtype=np.int32).reshape(int(str(self.config[heads])), -1, 2)
        return paired.swapaxes(1, 2).reshape(-1)


def _stays_packed(entry: TensorEntry) -> bool:
    """A matrix, or the matrices of a layer's experts, of a type that products can read."""
    return entry.type.name in FORMS and len(entry.shape) > 1
