"""Rows in fp8 or int8."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.quantize.op import quantize_rows
    from slipway_kernels.quantize.quantized import QuantizedRows

__all__ = ["QuantizedRows", "quantize_rows"]

__getattr__ = exports(__name__, op=("quantize_rows",), quantized=("QuantizedRows",))
