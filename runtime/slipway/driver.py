"""Whether this machine has NVIDIA's driver, told without torch, whose import takes seconds."""

from __future__ import annotations

import os

CONTROL = "/dev/nvidiactl"


def loaded() -> bool:
    return os.path.exists(CONTROL)
