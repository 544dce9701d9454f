"""Sums over the ranks that share a layer."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.collective.op import (
        PROGRAMS,
        ROOM,
        SIZES,
        Peers,
        all_reduce,
        memory_bytes,
        takes,
        two_shots,
    )

__all__ = ["PROGRAMS", "ROOM", "SIZES", "Peers", "all_reduce", "memory_bytes", "takes", "two_shots"]

__getattr__ = exports(__name__, op=__all__)
