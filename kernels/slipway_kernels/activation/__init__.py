"""Activations, alone or with what they gate."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.activation.op import activate, add_gated, gated

__all__ = ["activate", "add_gated", "gated"]

__getattr__ = exports(__name__, op=__all__)
