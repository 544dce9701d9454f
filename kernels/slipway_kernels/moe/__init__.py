"""A mixture of experts: choose, sort, multiply, sum."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.moe.op import Scaled, block_m_of, moe_linear, stack_experts
    from slipway_kernels.moe.op_route import Arrangement, arrange, arrangement, combine, route

__all__ = [
    "Arrangement",
    "Scaled",
    "arrange",
    "arrangement",
    "block_m_of",
    "combine",
    "moe_linear",
    "route",
    "stack_experts",
]

__getattr__ = exports(
    __name__,
    op=("Scaled", "block_m_of", "moe_linear", "stack_experts"),
    op_route=("Arrangement", "arrange", "arrangement", "combine", "route"),
)
