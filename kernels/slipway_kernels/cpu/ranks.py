"""Ranks that compute a step together: over memory that they share, or by an exchange between hosts."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable

from slipway_kernels.cpu.binding import EXCHANGE, library

RANKS_BYTES = 4 << 30
"""Of addresses: only what programs use takes memory."""
USED_UP = (
    f"The {RANKS_BYTES >> 30} GiB that ranks have for each other are used up. Lower --max-num-batched-tokens."
)

Exchange = Callable[[int, int, int], None]
"""Fills the other ranks' parts: address of rank 0's, bytes that each has, bytes from one to the next."""


def shared_memory() -> int:
    """A descriptor of zeros that processes share by inheriting it; nobody else finds it."""
    descriptor = os.memfd_create("slipway-ranks")
    os.ftruncate(descriptor, RANKS_BYTES)
    return descriptor


class Ranks:
    """A place among ranks, which join programs of the same operations to it in the same order."""

    def __init__(
        self, rank: int, size: int, threads: int, descriptor: int, exchange: Exchange | None = None
    ) -> None:
        """
        threads     of all ranks together
        descriptor  of `shared_memory`, which stays the caller's
        exchange    for ranks that have no memory in common, and each a descriptor of its own: called on one
                    thread of each; raises where a rank has gone
        """
        if not 0 <= rank < size or threads < size:
            raise ValueError(f"There is no rank {rank} of {size} that have {threads} threads together.")
        self.rank, self.size = rank, size
        self.failure: Exception | None = None
        """Why an exchange failed."""
        self._exchange = exchange
        self._called = EXCHANGE(self._call) if exchange else EXCHANGE()
        self._mapped = mmap.mmap(descriptor, RANKS_BYTES)
        at = ctypes.addressof(ctypes.c_char.from_buffer(self._mapped))
        self._c = library()
        self.pointer: int = self._c.sw_ranks_create(rank, size, threads, at, RANKS_BYTES, self._called)
        weakref.finalize(self, self._c.sw_ranks_destroy, self.pointer)

    def give_back(self) -> None:
        """The programs that had joined have gone; what they took serves the next ones."""
        self._c.sw_ranks_give_back(self.pointer)

    def leave(self) -> None:
        """No rank waits for another from now on: each one's step raises RankLeft. Called in any thread."""
        self._c.sw_ranks_leave(self.pointer)

    @property
    def left(self) -> bool:
        return bool(self._c.sw_ranks_left(self.pointer))

    def _call(self, at: int, used: int, step: int) -> int:
        assert self._exchange is not None
        try:
            self._exchange(at, used, step)
        except Exception as error:  # C++ cannot be left by one
            self.failure = error
            return 0
        return 1


class RankLeft(Exception):
    """A rank has left in the midst of a step, whose results mean nothing."""
