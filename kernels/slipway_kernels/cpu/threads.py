"""The kernels' thread pool."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from slipway_kernels.cpu.binding import address, ints, library


class Threads:
    """The kernels' own threads; the caller of a step is the first of them. They sleep between steps."""

    def __init__(self, count: int, cpus: Sequence[int] = ()) -> None:
        """cpus: a processor for each thread, where it stays; none: the system moves them as it likes.

        The caller is on the first of them during a step, and free between steps.
        """
        if cpus and len(cpus) != count:
            raise ValueError(f"{count} threads cannot have {len(cpus)} processors: name one for each.")
        if count < 1:
            raise ValueError(f"A thread pool of {count} threads cannot compute: ask for at least 1.")
        self.count = count
        given = ints(cpus)
        self.pointer: int = library().sw_pool_create(count, address(given) if cpus else None)
        weakref.finalize(self, library().sw_pool_destroy, self.pointer)
