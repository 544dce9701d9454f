"""Rotary position embedding, with the norm before it and the cache's write behind it."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.rope.op import rope_and_store

__all__ = ["rope_and_store"]

__getattr__ = exports(__name__, op=__all__)
