"""Safetensors files read ahead by threads, so that the disk works while weights are packed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread

from slipway.load.safetensors import SafetensorsWeights
from slipway.load.weight_files import Entry

THREADS = 4
CHUNK = 8 << 20
"""Bytes of one read."""
AHEAD = 256 << 20
"""Bytes between what has been packed and what is read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a file that are read at once; `before` counts those of all chunks in front of it."""

    path: Path
    offset: int
    nbytes: int
    before: int


class ReadAheadWeights(SafetensorsWeights):
    """Mapped files whose next tensors are brought into the page cache while those before are packed.

    A mapping alone is read as its pages are touched: packing waits for the disk, and the disk for packing.
    What the threads read they drop, and tensors are views of the mapping as ever: they are the same to the
    bit, and a file that cannot be read fails where its tensor is used, as it would without. This takes
    `THREADS` · `CHUNK` bytes of buffers, and `AHEAD` bytes of the cache, which the kernel may take back.
    """

    _ahead: ReadAhead | None = None

    @contextmanager
    def reading(self, names: Sequence[str]) -> Iterator[None]:
        with ReadAhead(chunks((self._paths[name], self.entries[name]) for name in names)) as self._ahead:
            yield
        self._ahead = None

    def release(self, name: str) -> None:
        super().release(name)
        if self._ahead is not None:
            self._ahead.used(self.entries[name].nbytes)


def chunks(tensors: Iterable[tuple[Path, Entry]]) -> Iterator[Chunk]:
    """The tensors' bytes, in their order."""
    before = 0
    for path, entry in tensors:
        for start in range(0, entry.nbytes, CHUNK):
            yield Chunk(path, entry.offset + start, min(CHUNK, entry.nbytes - start), before + start)
        before += entry.nbytes


class ReadAhead:
    """Threads that read chunks in their order, never further than `AHEAD` bytes beyond what was used.

    They run from `with` on, until all is read or the block is left, which waits for reads under way.
    """

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._bytes_used = 0
        self._ended = False
        self._turn = Condition()
        # Daemons: an iteration that is never finished must not keep the process from ending.
        self._threads = [Thread(target=self._run, name="read-ahead", daemon=True) for _ in range(THREADS)]

    def __enter__(self) -> ReadAhead:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._ended = True
            self._turn.notify_all()
        for thread in self._threads:
            thread.join()

    def used(self, nbytes: int) -> None:
        """So many more bytes are packed."""
        with self._turn:
            self._bytes_used += nbytes
            self._turn.notify_all()

    def _next(self) -> Chunk | None:
        with self._turn:
            chunk = next(self._chunks, None)
            if chunk is not None:
                before = chunk.before
                self._turn.wait_for(lambda: self._ended or before < self._bytes_used + AHEAD)
            return None if self._ended else chunk

    def _run(self) -> None:
        buffer = memoryview(bytearray(CHUNK))
        # A file that is gone or cannot be read is left to whoever uses its tensor.
        with suppress(OSError), ExitStack() as stack:
            files: dict[Path, int] = {}
            while chunk := self._next():
                if chunk.path not in files:
                    files[chunk.path] = stack.enter_context(chunk.path.open("rb", buffering=0)).fileno()
                os.preadv(files[chunk.path], [buffer[: chunk.nbytes]], chunk.offset)
