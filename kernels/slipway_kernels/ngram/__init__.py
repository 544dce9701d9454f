"""Prompt lookup on the device: drafts out of the slots' own tokens."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.ngram.op import look_up

__all__ = ["look_up"]

__getattr__ = exports(__name__, op=__all__)
