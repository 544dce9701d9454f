"""The worker's state, changed, read and advanced on the device."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.slots.op import apply_runs, finish, prepare

__all__ = ["apply_runs", "finish", "prepare"]

__getattr__ = exports(__name__, op=__all__)
