"""PyTorch's own files (`*.bin`, `*.pt`), read without running the code that they may hold.

Only torch reads them, so it is imported here, once such a file is met.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.load.arrays import Array, DType
from slipway.load.errors import LoadError
from slipway.load.extras import require_torch
from slipway.load.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    dtype: DType


class TorchWeights:
    """The tensors of one or several files, one file in memory (mapped) at a time."""

    def __init__(self, files: Sequence[Path], map_location: object, progress: Progress) -> None:
        """Raises LoadError where torch is not installed."""
        require_torch(f"{files[0]} holds PyTorch's own format", "convert the model to safetensors")
        self._files = tuple(files)
        self._map_location: Any = map_location
        self._progress = progress
        self.total_bytes = sum(path.stat().st_size for path in files)
        self._done = 0
        self._open: tuple[Path, Mapping[str, Tensor]] | None = None

    def names(self) -> dict[Path, list[str]]:
        """The tensors' names by file."""
        return {path: list(self._read(path)) for path in self._files}

    def described(self) -> dict[str, Described]:
        """The tensors by name, without their numbers."""
        from slipway.load.torch_arrays import array_type

        return {
            name: Described(tuple(tensor.shape), array_type(tensor.dtype))
            for path in self._files
            for name, tensor in self._read(path).items()
        }

    def sizes(self) -> dict[DType, int]:
        """How many weights each stored type has, by the first file."""
        from slipway.load.torch_arrays import array_type

        sizes: dict[DType, int] = {}
        for tensor in self._read(self._files[0]).values():
            dtype = array_type(tensor.dtype)
            sizes[dtype] = sizes.get(dtype, 0) + tensor.numel()
        return sizes

    def stored(self) -> Iterator[tuple[str, Array]]:
        """Name and weights, each a view of its file."""
        from slipway.load.torch_arrays import array

        done = 0
        for path in self._files:
            for name, tensor in self._read(path).items():
                yield name, array(tensor)
            done += path.stat().st_size
            self._progress("load", done, self.total_bytes)

    def view(self, name: str) -> Array:
        """A tensor as it is stored, which is not to be written to."""
        from slipway.load.torch_arrays import array

        return array(self._tensor(name))

    def release(self, name: str) -> None:
        """A tensor has been read, once: tell the progress."""
        self._done += self._tensor(name).nbytes
        self._progress("load", min(self._done, self.total_bytes), self.total_bytes)

    def close(self) -> None:
        self._open = None

    def _tensor(self, name: str) -> Tensor:
        path = self._file_of[name]
        if self._open is None or self._open[0] != path:
            self._open = path, self._read(path)
        return self._open[1][name]

    @cached_property
    def _file_of(self) -> dict[str, Path]:
        return {name: path for path, names in self.names().items() for name in names}

    def _read(self, path: Path) -> Mapping[str, Tensor]:
        import torch

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
            )
        return state
