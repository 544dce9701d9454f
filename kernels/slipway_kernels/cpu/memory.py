"""Memory of the kernels' own, and the pool of pages."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from slipway_kernels.cpu.binding import DTYPES, address, ints, library

AHEAD = 128 << 20
"""Bytes of the KV cache behind the last page in use that are touched before they are needed."""
TOUCHED_AT_ONCE = 2 << 20
_APART = ContextVar("apart", default=False)


class Memory:
    """Zeroed memory, in huge pages where the system gives them: taken when touched, freed with the object.

    `shared`: cut from larger mappings, and from what `reserved` has prepared; but not `apart`.
    """

    def __init__(self, size: int, *, shared: bool = False) -> None:
        shared = shared and not _APART.get()
        take = library().sw_memory_take if shared else library().sw_memory_map
        self.address: int = take(size)
        if not self.address:
            raise MemoryError(
                f"The system refused {size} bytes of address space. Free memory, or ask for less: a smaller "
                "KV cache or a smaller model."
            )
        self._size = size
        weakref.finalize(self, library().sw_memory_unmap, self.address, size)

    def release(self) -> None:
        """Give the system back what was touched. The address stays, and what is read there is 0 again."""
        library().sw_memory_release(self.address, self._size)


@contextmanager
def reserved(size: int) -> Iterator[None]:
    """A thread touches this much memory for the weights that are loaded within: the first touch is slow.

    Memory of it that is freed within returns to the system at the end, when that thread has stopped.
    """
    library().sw_memory_reserve(size)
    try:
        yield
    finally:
        library().sw_memory_settle()


@contextmanager
def apart() -> Iterator[None]:
    """Weights made within have mappings of their own: `reserved` prepares memory for those that stay."""
    before = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(before)


def spread(nodes: Sequence[Sequence[int]]) -> None:
    """Spread memory that is touched ahead over these nodes, a huge page on each in turn.

    nodes   the processors of each; with none, memory lies where the touching thread happens to run
    """
    cpus, counts = ints([cpu for node in nodes for cpu in node]), ints([len(node) for node in nodes])
    library().sw_memory_spread(len(nodes), address(counts), address(cpus))


def trim() -> None:
    """Give the system back what the C library keeps of freed memory."""
    library().sw_memory_trim()


class PageMemory:
    """Equal pages of KV cache. The layout inside a page belongs to the attention kernel."""

    def __init__(self, num_pages: int, page_bytes: int) -> None:
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self.memory = Memory(max(1, num_pages * page_bytes))
        self._used = 0
        self._touched = 0

    def use(self, pages: Sequence[int]) -> None:
        """These pages are about to be written."""
        self._used = max(self._used, (max(pages, default=-1) + 1) * self.page_bytes)

    def release(self) -> None:
        """Give back the memory of every page: none holds anything any more."""
        self._used = self._touched = 0
        self.memory.release()

    def touch_ahead(self) -> bool:
        """Touch some memory behind the last page in use, a few milliseconds' worth; False where enough is.

        Fresh pages are handed out in ascending order, and the first touch of memory is slow: better while
        nobody waits than in the middle of a prompt.
        """
        wanted = min(self._used + AHEAD, self.num_pages * self.page_bytes)
        begin = max(self._touched, self._used)
        if begin >= wanted:
            return False
        self._touched = min(begin + TOUCHED_AT_ONCE, wanted)
        library().sw_memory_touch(self.memory.address + begin, self._touched - begin)
        return True


def page_bytes(layers: int, kv_heads: int, head_dim: int, block_size: int, dtype: str) -> int:
    """Bytes of a page that holds `block_size` tokens of `layers` layers: fp32, bf16, int8, e4m3 or e5m2."""
    layer: int = library().sw_page_layer_bytes(kv_heads, head_dim, block_size, DTYPES[dtype])
    return layers * layer
