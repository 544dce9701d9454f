"""Attention over pages, or over a step's own keys and values."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.attention.op import Workspace, contiguous_attention, paged_attention, workspace

__all__ = ["Workspace", "contiguous_attention", "paged_attention", "workspace"]

__getattr__ = exports(__name__, op=__all__)
