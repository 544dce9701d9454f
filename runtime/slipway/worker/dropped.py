"""Memory of what a worker has let go while it lives on."""

from __future__ import annotations

import gc

from slipway_kernels.cpu import trim


def free_dropped() -> None:
    """Free what nothing refers to but itself, also where it is as old as the process.

    The engine freezes what its start has made, so that collections need not look at it.
    """
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
    trim()
