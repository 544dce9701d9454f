"""Products of 8-bit matrices."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.linear_w8a8.op import linear_w8a8
    from slipway_kernels.linear_w8a8.quantized import quantized_linear

__all__ = ["linear_w8a8", "quantized_linear"]

__getattr__ = exports(__name__, op=("linear_w8a8",), quantized=("quantized_linear",))
