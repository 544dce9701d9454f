"""How long tests wait for what must come: longer where the machine is slow or busy."""

from __future__ import annotations

import os
import time

_VARIABLE = "TESTS_SLOWNESS"
"""Tells the workers and commands that a test starts, so that the machine is asked once."""
_USUAL = 0.05
"""Seconds that the probe takes on one quiet core of an AMD EPYC 7003."""
_SPARE = 3.0
"""For the load that comes after the probe, the other tests' first of all."""


def _probe() -> float:
    """How many times as long as usual a piece of work takes here and now, at least 1."""
    begun = time.perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.perf_counter() - begun) / _USUAL)


SLOWNESS = float(os.environ.setdefault(_VARIABLE, f"{_probe():.2f}"))
"""For claims about time: `took < 3 * SLOWNESS`."""
HEADER = f"deadlines are for a machine that is {SLOWNESS:g} times as slow as usual"
"""What a run of tests says of it first."""


def scaled(seconds: float) -> float:
    """A deadline, given in seconds for a quiet machine. Only a failure waits for it."""
    return seconds * SLOWNESS * _SPARE


def at_most(seconds: float) -> str:
    """The same as an option of kubectl and Helm."""
    return f"--timeout={scaled(seconds):.0f}s"
