"""A file's bytes as arrays, without keeping in memory what was read."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from slipway.load.arrays import Array

_AROUND = 2 << 20


class MappedFile:
    """A file mapped for reading. Its views are never written to, and outlive `close`."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._memory.madvise(mmap.MADV_SEQUENTIAL)

    def view(self, offset: int, nbytes: int) -> Array:
        """Bytes [nbytes] uint8 at `offset`, which the caller has checked against the file's size."""
        assert self._memory is not None
        return np.frombuffer(self._memory, np.uint8, nbytes, offset if nbytes else 0)

    def release(self, offset: int, nbytes: int) -> None:
        """Drop these pages from memory; a view of them reads the file again."""
        if self._memory is None:
            return
        # The kernel maps some pages before the one that is touched, so the tail of what was released
        # before comes back with the next tensor: it is dropped again.
        start = max(0, offset - _AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
        self._memory.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)

    def close(self) -> None:
        # Not `mmap.close`: that refuses while a view lives. The last of them unmaps the file.
        self._memory = None
