"""Products with weights of four or eight bits."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.linear_w4a16.layout import Packed, pack, unpack
    from slipway_kernels.linear_w4a16.op import Workspace, dequantize, linear_w4a16, rows

__all__ = ["Packed", "Workspace", "dequantize", "linear_w4a16", "pack", "rows", "unpack"]

__getattr__ = exports(
    __name__, layout=("Packed", "pack", "unpack"), op=("Workspace", "dequantize", "linear_w4a16", "rows")
)
