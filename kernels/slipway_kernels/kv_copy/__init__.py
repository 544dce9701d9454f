"""Pages copied on the device, and between it and the host."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.kv_copy.op import (
        DIRECT_BYTES,
        copy_pages,
        gather_pages,
        scatter_pages,
        swap_in,
        swap_out,
    )

__all__ = ["DIRECT_BYTES", "copy_pages", "gather_pages", "scatter_pages", "swap_in", "swap_out"]

__getattr__ = exports(__name__, op=__all__)
