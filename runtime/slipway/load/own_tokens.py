"""What an adapter has in place of a model's own: rows of the embedding and the head, and a longer context.

Rows come in two forms: whole matrices in PEFT's file (`modules_to_save`, or a vocabulary that was resized
before training), and vLLM's older `new_embeddings`, which has those of added tokens alone.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from slipway.load.arrays import Array, is_float
from slipway.load.config import positive
from slipway.load.folder import read_json
from slipway.load.safetensors import SafetensorsWeights
from slipway.load.weight_files import WeightFiles

WHOLE = re.compile(r"base_model\.model\.(.+?)(?:\.base_layer|\.modules_to_save(?:\.default)?)?\.weight")
"""Names of whole matrices, by the module."""
NEW = ("input_embeddings", "output_embeddings")


@dataclass(frozen=True, slots=True)
class NewRows:
    """vLLM's older form: rows [n, hidden] of tokens behind the model's vocabulary."""

    embedding: Array
    head: Array | None = None


@dataclass(frozen=True, slots=True)
class OwnLimits:
    """What a server takes of it: `--lora-extra-vocab-size`, `--long-lora-scaling-factors`."""

    max_added: int = 0
    """Tokens behind the vocabulary."""
    refused: str = ""
    """Why no adapter may have rows of its own here, in words that follow "has …, which"; empty: it may."""
    factors: tuple[float, ...] = ()
    """By which positions may be stretched, ascending."""

    @property
    def room(self) -> int:
        """Columns that rows of logits may have behind those of the vocabulary."""
        return 0 if self.refused else self.max_added

    @property
    def any(self) -> bool:
        """Whether an adapter may have anything of its own."""
        return not self.refused or bool(self.factors)


NOTHING_OWN = OwnLimits()


@dataclass(frozen=True, slots=True)
class OwnSizes:
    """What those must know of an adapter who read none of its numbers."""

    added: int = 0
    """Tokens behind the model's vocabulary."""
    context_length: int = 0
    """Tokens that it was trained for; 0: as many as the model."""


def open_tensors(folder: Path, stem: str = "adapter_model") -> WeightFiles | None:
    """Those that PEFT saved there, or of another such file; None: there are none."""
    path = folder / f"{stem}.safetensors"
    if path.is_file():
        return SafetensorsWeights([path], lambda *told: None)
    pickled = path.with_suffix(".bin")
    if not pickled.is_file():
        return None
    from slipway.load.torch_files import TorchWeights

    return TorchWeights([pickled], "cpu", lambda *told: None)


def read_new_rows(folder: Path) -> NewRows | None:
    """The rows of `new_embeddings`; None: there are none. Raises ValueError that says what they are else."""
    files = open_tensors(folder, "new_embeddings")
    if files is None:
        return None
    with closing(files):
        entries = files.entries
        if not {NEW[0]} <= entries.keys() <= {*NEW}:
            raise ValueError(f"has {', '.join(entries)} in new_embeddings, which holds {' and '.join(NEW)}")
        for entry in entries.values():
            if len(entry.shape) != 2 or not is_float(entry.dtype):
                raise ValueError(
                    f"has {entry.name} of {entry.dtype} {list(entry.shape)}; they are rows of numbers"
                )
        rows = {name: files.view(name).copy() for name in entries}
    if NEW[1] in rows and rows[NEW[1]].shape != rows[NEW[0]].shape:
        raise ValueError(
            f"has {NEW[0]} of {list(rows[NEW[0]].shape)} and {NEW[1]} of {list(rows[NEW[1]].shape)}"
        )
    return NewRows(rows[NEW[0]], rows.get(NEW[1]))


def sizes_of(folder: Path, vocab: int) -> OwnSizes:
    """Of an adapter that the engine has found fit for a model of so many tokens."""
    config = folder / "adapter_config.json"
    length = read_json(config).get("context_length") if config.is_file() else None
    context_length = positive({"context_length": length}, "context_length") if length else 0
    files = open_tensors(folder, "new_embeddings")
    if files is not None:
        with closing(files):
            return OwnSizes(files.entries[NEW[0]].shape[0], context_length)
    files = open_tensors(folder)
    if files is None:
        return OwnSizes(0, context_length)
    with closing(files):
        matrices = (one.shape[0] for name, one in files.entries.items() if _is_whole(name))
        return OwnSizes(max(0, max(matrices, default=0) - vocab), context_length)


def _is_whole(name: str) -> bool:
    return ".lora_" not in name and WHOLE.fullmatch(name) is not None
