"""What low-rank adapters add, for rows of many adapters."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.lora.op import Pool, add_lora, expand, shrink, workspace
    from slipway_kernels.lora.rows import Rows, sort_rows

__all__ = ["Pool", "Rows", "add_lora", "expand", "shrink", "sort_rows", "workspace"]

__getattr__ = exports(
    __name__, op=("Pool", "add_lora", "expand", "shrink", "workspace"), rows=("Rows", "sort_rows")
)
