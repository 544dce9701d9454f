"""Opens a model's weights, whatever they are stored as."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from slipway.engine.config import EngineConfig
from slipway.load.arrays import FP16, FP32, Array, DType, cast
from slipway.load.cut import Cut, Stored
from slipway.load.dummy import Drawn, drawn_on_host
from slipway.load.errors import LoadError, no_model
from slipway.load.folder import find_weights, read_json
from slipway.load.gguf.checkpoint import GgufCheckpoint
from slipway.load.gguf.config import model_config
from slipway.load.gguf.header import read
from slipway.load.hub import locate
from slipway.load.mistral import PARAMS, ConsolidatedWeights, config_of
from slipway.load.progress import Progress, announced
from slipway.load.quantized.checkpoint import Layers
from slipway.load.quantized.config import quantization, quantization_settings
from slipway.load.quantized.form import Form
from slipway.load.read_ahead import ReadAheadWeights
from slipway.load.safetensors import SafetensorsWeights
from slipway.load.torch_files import TorchWeights
from slipway.load.weight_files import WeightFiles

_LOADED = ("auto", "safetensors", "fastsafetensors", "pt", "mistral", "gguf", "dummy")
_NAMES = {FP16: "float16", FP32: "float32", np.dtype(np.float64): "float32"}


class Checkpoint(Protocol):
    """A model's configuration and its weights, streamed. Where nothing else is said they are plain."""

    config: dict[str, object]
    """As transformers' `config.json`; for GGUF made from the metadata."""
    source_dtype: str
    """Type of the stored weights: "bfloat16", "float16" or "float32"."""
    quantization: str = ""
    """How the weights are quantized, as `quant_method` names it, or "gguf"; "" where they are plain."""
    folder: Path | None
    """Where configuration and tokenizer lie; None for a single GGUF file."""
    total_bytes: int = 0
    """Bytes that `stored` reads."""
    decoded: Mapping[str, tuple[str, float]] = {}
    """Quantized matrices that `stored` gives plain: their type in the file, and its bits for each weight."""

    def forms(self) -> Mapping[str, Form]:
        """What `stored` gives quantized: matrices by name, and how each is stored. {} for plain weights.

        Raises LoadError where the tensors that make a matrix do not fit each other.
        """
        return {}

    def stored(self, dtype: DType) -> Iterator[tuple[str, Stored]]:
        """Hugging Face's names and weights, as they lie in the file; types that no scheme reads in `dtype`.

        An array is to be read, never written: it may be a view of the file. A tensor is read before the next
        one is asked for, which drops its pages, so that peak memory is one tensor above the caller's; what is
        not read of it is not unpacked.
        """

    def kv_scales(self) -> Mapping[int, tuple[float, float]]:
        """By layer, what keys and values are divided by in an fp8 KV cache; {} where nothing is said."""
        return {}

    def close(self) -> None:
        """Let go of the files; tensors that were handed out stay valid."""
        return


class FolderCheckpoint(Layers, Checkpoint):
    """A folder as `save_pretrained` writes it, with safetensors or PyTorch files, or one of Mistral's own."""

    def __init__(self, folder: Path, config: EngineConfig, progress: Progress) -> None:
        self.folder = folder
        self.config = _folder_config(folder, config)
        files = find_weights(folder, config.load_format, config.ignore_patterns)
        weights: WeightFiles
        if files.format == "safetensors":
            reader = ReadAheadWeights if config.load_format == "fastsafetensors" else SafetensorsWeights
            weights = reader(files.files, progress)
        elif files.format == "mistral":
            weights = ConsolidatedWeights(files.files, self.config, progress)
        else:
            weights = TorchWeights(files.files, config.pt_load_map_location, progress)
        weights.check(files.index)
        self.total_bytes = weights.total_bytes
        sizes: Counter[DType] = Counter()
        for entry in weights.entries.values():
            sizes[entry.dtype] += math.prod(entry.shape)
        largest = max(sizes, key=lambda dtype: sizes[dtype], default=FP32)
        self.source_dtype = _NAMES.get(largest, "bfloat16")
        quantized = quantization(quantization_settings(self.config, folder, config.hf_overrides))
        self.quantization = quantized.method if quantized else ""
        super().__init__(weights, quantized)


class DummyCheckpoint(Checkpoint):
    """The configuration of a model whose weights are random: the model says which it needs."""

    def __init__(self, path: Path, config: EngineConfig, progress: Progress) -> None:
        self.folder = path if path.suffix != ".gguf" else None
        self.config = _folder_config(path, config) if self.folder else model_config(read(path))
        stored = self.config.get("dtype") or self.config.get("torch_dtype")
        self.source_dtype = str(stored) if stored in _NAMES.values() else "bfloat16"
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        self.drawn: Drawn = drawn_on_host
        self._seed = config.seed
        self._progress = progress

    def stored(self, dtype: DType) -> Iterator[tuple[str, Stored]]:
        """Norms 1, biases 0, matrices as `drawn` draws them, by `shapes`: the model sets both first."""
        for done, (name, shape) in enumerate(self.shapes.items(), 1):
            if len(shape) >= 2:
                yield name, Stored(shape, partial(self._matrix, shape, name))
            else:
                value = 0.0 if name.endswith("bias") else 1.0
                yield name, Stored.plain(cast(np.full(shape, value, np.float32), dtype))
            self._progress("load", done, len(self.shapes))

    def _matrix(self, shape: tuple[int, ...], name: str, cut: Cut) -> Array:
        part: Array = cut.of(self.drawn(shape, zlib.crc32(f"{self._seed} {name}".encode())))
        return part


def open_checkpoint(config: EngineConfig, progress: Progress) -> Checkpoint:
    """Find (on disk or on the hub) and open the model that `config` names.

    Raises LoadError with what is wrong and what to do.
    """
    if config.load_format not in _LOADED:
        raise LoadError(
            "UnsupportedFormat",
            f"--load-format {config.load_format} is not supported yet.",
            hint=f"Use {', '.join(_LOADED[:-1])} or {_LOADED[-1]}.",
            argument="load_format",
        )
    if config.use_tqdm_on_load:
        progress = announced(progress)
    path = locate(
        config.model,
        revision=config.revision,
        load_format=config.load_format,
        token=config.hf_token,
        download_dir=config.download_dir,
        ignore_patterns=config.ignore_patterns,
        weights=config.load_format != "dummy",
        code=config.trust_remote_code,
        progress=progress,
    )
    if config.load_format == "dummy":
        return DummyCheckpoint(path, config, progress)
    if path.is_dir() and (gguf := _gguf_in(path, config)):
        path = gguf
    if path.is_dir():
        return FolderCheckpoint(path, config, progress)
    if path.suffix != ".gguf":
        raise no_model(path)
    if config.load_format not in ("auto", "gguf"):
        raise LoadError(
            "UnsupportedFormat",
            f"{path} is a .gguf file, and --load-format is {config.load_format}.",
            hint="Name a model's folder, or leave --load-format out.",
            argument="load_format",
        )
    return GgufCheckpoint(path, progress)


def _gguf_in(folder: Path, config: EngineConfig) -> Path | None:
    """The first GGUF file of a folder that is to be read as GGUF."""
    if config.load_format == "auto" and (folder / "config.json").is_file():
        return None
    files = find_weights(folder, config.load_format, config.ignore_patterns)
    if files.format != "gguf":
        return None
    whole = [path for path in files.files if "-of-" not in path.name or "-00001-of-" in path.name]
    if len(whole) != 1:
        raise LoadError(
            "BadCheckpoint",
            f"{folder} holds {len(whole)} GGUF models: {', '.join(path.name for path in whole)}.",
            hint=f"Name one of them: {folder / files.files[0].name}",
        )
    return whole[0]


def _folder_config(folder: Path, config: EngineConfig) -> dict[str, object]:
    """Of a model's folder, or what `--hf-config-path` names instead, as `config.json` would say it."""
    place = folder
    if config.hf_config_path is not None:
        place = locate(
            config.hf_config_path,
            revision=config.revision,
            token=config.hf_token,
            download_dir=config.download_dir,
            weights=False,
        )
    named = config.config_format
    if named == "mistral" or (named == "auto" and not _has(place, "config.json") and _has(place, PARAMS)):
        return config_of(read_json(place / PARAMS))
    return read_json(place / "config.json")


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_file()
