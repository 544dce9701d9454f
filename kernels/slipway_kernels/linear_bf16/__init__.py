"""Products of 16-bit matrices."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.linear_bf16.op import few_rows, linear_bf16

__all__ = ["few_rows", "linear_bf16"]

__getattr__ = exports(__name__, op=__all__)
