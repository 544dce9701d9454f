"""What low-rank adapters add, for rows of many adapters."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.lora.op import add_looked_up, add_lora, expand, fold, shrink, workspace
    from slipway_kernels.lora.op_own import OwnShape, OwnTables, enter_own, own_logits
    from slipway_kernels.lora.pool import Pool, PoolShape
    from slipway_kernels.lora.rows import Rows, sort_rows, unsorted

__all__ = [
    "OwnShape",
    "OwnTables",
    "Pool",
    "PoolShape",
    "Rows",
    "add_looked_up",
    "add_lora",
    "enter_own",
    "expand",
    "fold",
    "own_logits",
    "shrink",
    "sort_rows",
    "unsorted",
    "workspace",
]

__getattr__ = exports(
    __name__,
    op=("add_looked_up", "add_lora", "expand", "fold", "shrink", "workspace"),
    op_own=("OwnShape", "OwnTables", "enter_own", "own_logits"),
    pool=("Pool", "PoolShape"),
    rows=("Rows", "sort_rows", "unsorted"),
)
