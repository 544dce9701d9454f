"""Files of named tensors: what their tables say, whatever the format, and how far they have been read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from slipway.load.arrays import Array, DType
from slipway.load.errors import LoadError
from slipway.load.progress import Progress


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor without its numbers; `offset` is in bytes of the file, where that is mapped."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class WeightFiles(ABC):
    """The tensors of one or several files, read one by one."""

    def __init__(self, tables: Mapping[Path, Sequence[Entry]], progress: Progress) -> None:
        """Raises LoadError where a name occurs in two files."""
        self.entries: dict[str, Entry] = {}
        """By name, in an order that is good to read in."""
        self._paths: dict[str, Path] = {}
        for path, table in tables.items():
            for entry in table:
                if other := self._paths.get(entry.name):
                    raise LoadError(
                        "BadCheckpoint",
                        f"The tensor {entry.name} is both in {other.name} and in {path.name} "
                        f"of {path.parent}.",
                        hint="The folder mixes two checkpoints: keep one, or use --ignore-patterns.",
                    )
                self.entries[entry.name], self._paths[entry.name] = entry, path
        self.total_bytes = sum(entry.nbytes for entry in self.entries.values())
        self._progress = progress
        self._done = 0

    def check(self, index: Mapping[str, str]) -> None:
        """Raise LoadError where a file lacks what the index, name → file name, promises."""
        for name, file in index.items():
            if name not in self._paths or self._paths[name].name != file:
                raise LoadError(
                    "BadCheckpoint",
                    f"The index says that the tensor {name} is in {file}, but it is not.",
                    hint="Index and weight files are from different versions; fetch the model again.",
                )

    def reading(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Within it these tensors are viewed and released in this order, so that they can be read ahead."""
        return nullcontext()

    @abstractmethod
    def view(self, name: str) -> Array:
        """A tensor as it is stored, which is not to be written to."""

    def release(self, name: str) -> None:
        """A tensor has been read, once: tell the progress."""
        self._done += self.entries[name].nbytes
        self._progress("load", min(self._done, self.total_bytes), self.total_bytes)

    @abstractmethod
    def close(self) -> None:
        """Let go of the files; tensors that were handed out stay valid."""
