"""Memory of the kernels' own: packed weights and the pool of pages."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from slipway_kernels.cpu.binding import DTYPES, Floats, Ints, address, library
from slipway_kernels.cpu.threads import Threads

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

AHEAD = 256 << 20
"""Bytes of the KV cache behind the last page in use that are touched before they are needed."""
TOUCHED_AT_ONCE = 2 << 20

ELEMENTS = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


class Memory:
    """Zeroed memory, in huge pages where the system gives them: taken when touched, freed with the object.

    `shared`: cut from larger mappings, and from what `reserved` has prepared.
    """

    def __init__(self, size: int, *, shared: bool = False) -> None:
        take = library().sw_memory_take if shared else library().sw_memory_map
        self.address: int = take(size)
        if not self.address:
            raise MemoryError(
                f"The system refused {size} bytes of address space. Free memory, or ask for less: a smaller "
                "KV cache or a smaller model."
            )
        weakref.finalize(self, library().sw_memory_unmap, self.address, size)


@contextmanager
def reserved(size: int) -> Iterator[None]:
    """A thread touches this much memory for the weights that are loaded within: the first touch is slow."""
    library().sw_memory_reserve(size)
    try:
        yield
    finally:
        library().sw_memory_settle()


class PagePool:
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
    """Bytes of a page that holds `block_size` tokens of `layers` layers."""
    layer: int = library().sw_page_layer_bytes(kv_heads, head_dim, block_size, DTYPES[dtype])
    return layers * layer


class Packed:
    """A weight [n, k] in the layout of the products: [n/32][k/2][32][2] in bf16, [n/32][k][32] in fp32."""

    def __init__(self, n: int, k: int, dtype: str | torch.dtype) -> None:
        dtype = ELEMENTS.get(str(dtype), str(dtype))
        if dtype not in ("fp32", "bf16"):
            raise ValueError(f"A packed weight is fp32 or bf16, not {dtype}.")
        self.n = n
        self.k = k
        self.dtype = dtype
        padded_k = k + k % 2 if dtype == "bf16" else k
        self.nbytes = (n + 31) // 32 * 32 * padded_k * (2 if dtype == "bf16" else 4)
        self.memory = Memory(self.nbytes, shared=True)

    def load_rows(
        self,
        source: Tensor | NDArray[np.generic],
        destination_rows: Ints | Tensor | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Write rows [rows, k] of fp32, bf16 or fp16 (torch or numpy) to the rows named, else to the first.

        Raises ValueError where the shape, a row or the element type does not fit.
        """
        at, element, stride, keep = source_of(source)
        rows, k = source.shape
        if k != self.k:
            raise ValueError(f"The source has {k} columns, the packed weight {self.k}: they must be equal.")
        if destination_rows is None:
            destination_rows = np.arange(rows, dtype=np.int32)
        destination = np.ascontiguousarray(destination_rows, np.int32)
        if len(destination) != rows:
            raise ValueError(f"{rows} source rows have {len(destination)} destinations: give one each.")
        if rows == 0:
            return
        if destination.min() < 0 or destination.max() >= (self.n + 31) // 32 * 32:
            raise ValueError(
                f"Destination rows {destination.min()} to {destination.max()} do not fit a weight of "
                f"{self.n} rows."
            )
        pool = None if threads is None else threads.pointer
        packing = (
            self.memory.address,
            k,
            DTYPES[self.dtype],
            at,
            element,
            stride,
            rows,
            address(destination),
        )
        library().sw_pack_rows(pool, *packing)
        del keep

    def rows(self, ids: Ints | Tensor) -> Floats:
        """The rows [len(ids), k] in fp32. Raises ValueError for a row outside the weight."""
        wanted = np.ascontiguousarray(ids, np.int32)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= self.n):
            raise ValueError(f"Rows {wanted.min()} to {wanted.max()} are not all in [0, {self.n}).")
        out = np.empty((len(wanted), self.k), np.float32)
        library().sw_read_rows(
            self.memory.address,
            self.k,
            DTYPES[self.dtype],
            address(wanted),
            len(wanted),
            address(out),
        )
        return out


def source_of(source: Tensor | NDArray[np.generic]) -> tuple[int, int, int, object]:
    """Address, element type, row stride in elements, and what must stay alive meanwhile."""
    if isinstance(source, np.ndarray):
        if source.dtype not in (np.float32, np.float16):
            source = source.astype(np.float32)
        array = np.ascontiguousarray(source)
        element = DTYPES["fp32" if array.dtype == np.float32 else "fp16"]
        return array.ctypes.data, element, array.shape[1], array
    tensor = source.detach()
    if str(tensor.dtype) not in ELEMENTS:
        tensor = tensor.float()
    if tensor.stride(1) != 1:
        tensor = tensor.contiguous()
    return tensor.data_ptr(), DTYPES[ELEMENTS[str(tensor.dtype)]], tensor.stride(0), tensor
