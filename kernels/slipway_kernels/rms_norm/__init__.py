"""RMS norm, alone or with the addition before it."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.rms_norm.op import rms_norm

__all__ = ["rms_norm"]

__getattr__ = exports(__name__, op=__all__)
