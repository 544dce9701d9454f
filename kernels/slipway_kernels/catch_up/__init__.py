"""Slots of a model that guesses for another: how far it follows, and where its draws go."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.catch_up.op import append, catch_up, last_rows

__all__ = ["append", "catch_up", "last_rows"]

__getattr__ = exports(__name__, op=__all__)
