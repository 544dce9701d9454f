"""Layer norm, alone or with the addition before it."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.layer_norm.op import layer_norm

__all__ = ["layer_norm"]

__getattr__ = exports(__name__, op=__all__)
