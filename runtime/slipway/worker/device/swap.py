"""Pages in host memory that preempted requests are copied to and from (`--preemption-mode swap`)."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway.engine.plan import StepPlan
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.pinned import HostMemory
from slipway_kernels.kv_copy import DIRECT_BYTES, swap_in, swap_out

PREEMPTED = HostMemory(
    "preempted requests",
    "swap_space",
    "Lower --swap-space, give the container more memory, or leave --preemption-mode swap out.",
)
STAGING_BYTES = 32 << 20
"""Small pages are gathered on the device before they travel, so many at a time."""


class SwapSpace:
    """Host pages of the pool's size, pinned, so that copies run while the host goes on.

    Raises Exit where the host has no memory for them.
    """

    def __init__(self, num_pages: int, page_bytes: int, device: torch.device) -> None:
        self.num_pages = num_pages
        size = num_pages * page_bytes
        PREEMPTED.check(size)
        self._host = torch.empty((num_pages, page_bytes), dtype=torch.uint8)
        staged = min(num_pages, STAGING_BYTES // page_bytes) if 0 < page_bytes < DIRECT_BYTES else 0
        self._staging: Tensor | None = None
        if staged:
            self._staging = torch.empty((staged, page_bytes), dtype=torch.uint8, device=device)
        if size and device.type == "cuda":
            PREEMPTED.pin(self._host, self)

    def follow(self, plan: StepPlan, pool: DevicePages) -> None:
        """Give the device the plan's copies, after all work that it was given before."""
        if plan.swap_out:
            pages, host_pages = zip(*plan.swap_out, strict=True)
            swap_out(pool.rows, pages, self._host, host_pages, self._staging)
        if plan.swap_in:
            host_pages, pages = zip(*plan.swap_in, strict=True)
            swap_in(self._host, host_pages, pool.rows, pages, self._staging)
