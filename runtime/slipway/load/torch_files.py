"""PyTorch's own files (`*.bin`, `*.pt`), read without running the code that they may hold.

Only torch reads them, so it is imported here, once such a file is met.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.load.arrays import Array
from slipway.load.errors import LoadError
from slipway.load.extras import require_torch
from slipway.load.progress import Progress
from slipway.load.weight_files import Entry, WeightFiles

if TYPE_CHECKING:
    from torch import Tensor


class TorchWeights(WeightFiles):
    """PyTorch's files, one in memory (mapped) at a time."""

    def __init__(self, files: Sequence[Path], map_location: object, progress: Progress) -> None:
        """Raises LoadError where torch is not installed."""
        require_torch(f"{files[0]} holds PyTorch's own format", "convert the model to safetensors")
        self._map_location: Any = map_location
        self._open: tuple[Path, Mapping[str, Tensor]] | None = None
        super().__init__({path: self._table(path) for path in files}, progress)

    def view(self, name: str) -> Array:
        from slipway.load.torch_arrays import array

        path = self._paths[name]
        if self._open is None or self._open[0] != path:
            self._open = path, self._read(path)
        return array(self._open[1][name])

    def close(self) -> None:
        self._open = None

    def _table(self, path: Path) -> list[Entry]:
        from slipway.load.torch_arrays import array_type

        return [
            Entry(name, tuple(tensor.shape), array_type(tensor.dtype))
            for name, tensor in self._read(path).items()
        ]

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
