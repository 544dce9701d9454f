"""PyTorch's own files (`*.bin`, `*.pt`), read without running the code that they may hold."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from slipway.load.errors import LoadError
from slipway.load.progress import Progress


class TorchWeights:
    """The tensors of one or several files, one file in memory (mapped) at a time."""

    def __init__(self, files: Sequence[Path], map_location: object, progress: Progress) -> None:
        self._files = tuple(files)
        self._map_location: Any = map_location
        self._progress = progress
        self.total_bytes = sum(path.stat().st_size for path in files)
        self._done = 0
        self._open: tuple[Path, Mapping[str, torch.Tensor]] | None = None

    def names(self) -> dict[Path, list[str]]:
        """The tensors' names by file."""
        return {path: list(self._read(path)) for path in self._files}

    def described(self) -> dict[str, torch.Tensor]:
        """The tensors by name, without their numbers."""
        return {name: tensor.to("meta") for path in self._files for name, tensor in self._read(path).items()}

    def sizes(self) -> dict[torch.dtype, int]:
        """How many weights each stored type has, by the first file."""
        sizes: dict[torch.dtype, int] = {}
        for tensor in self._read(self._files[0]).values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
        return sizes

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and weights; integers keep their type, and what needs no change is a view."""
        done = 0
        for path in self._files:
            for name, tensor in self._read(path).items():
                yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor
            done += path.stat().st_size
            self._progress("load", done, self.total_bytes)

    def view(self, name: str) -> torch.Tensor:
        """A tensor as it is stored, which is not to be written to."""
        path = self._file_of[name]
        if self._open is None or self._open[0] != path:
            self._open = path, self._read(path)
        return self._open[1][name]

    def release(self, name: str) -> None:
        """A tensor has been read, once: tell the progress."""
        self._done += self.view(name).nbytes
        self._progress("load", min(self._done, self.total_bytes), self.total_bytes)

    def close(self) -> None:
        self._open = None

    @cached_property
    def _file_of(self) -> dict[str, Path]:
        return {name: path for path, names in self.names().items() for name in names}

    def _read(self, path: Path) -> Mapping[str, torch.Tensor]:
        try:
            state = torch.load(
                path,
                map_location=self._map_location,
                weights_only=True,
                mmap=zipfile.is_zipfile(path),  # files from before PyTorch 1.6 cannot be mapped
            )
        except Exception as error:  # torch documents none: a bad file raises what its parser meets
            raise LoadError(
                "BadCheckpoint",
                f"{path} cannot be read as PyTorch weights: {str(error).splitlines()[0]}",
                hint="Fetch it again, or convert the model to safetensors.",
                argument="model",
            ) from error
        if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
            state = state["state_dict"]
        if not isinstance(state, dict) or not all(
            isinstance(tensor, torch.Tensor) for tensor in state.values()
        ):
            raise LoadError(
                "BadCheckpoint",
                f"{path} does not hold tensors by name.",
                hint="Only state dictionaries can be loaded, not whole pickled models.",
                argument="model",
            )
        return state
