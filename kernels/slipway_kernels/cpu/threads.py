"""The kernels' thread pool."""

from __future__ import annotations

import weakref

from slipway_kernels.cpu.binding import library


class Threads:
    """The kernels' own threads; the caller of a step is the first of them. They sleep between steps."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"A thread pool of {count} threads cannot compute: ask for at least 1.")
        self.count = count
        self.pointer: int = library().sw_pool_create(count)
        weakref.finalize(self, library().sw_pool_destroy, self.pointer)
