"""What the ready line says of the time that a start took."""

from __future__ import annotations

import subprocess
import sys
import time

CODE = """
import time
begin = time.monotonic()
from slipway.api.greeting import seconds_running
took = time.monotonic() - begin
print(took, seconds_running())
"""
TICK = 0.01
"""Seconds, in which the kernel counts when a process began."""


def test_a_start_is_counted_from_when_the_process_began() -> None:
    begin = time.monotonic()
    printed = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    waited = time.monotonic() - begin
    imports, running = map(float, printed.split())
    assert imports < running < waited + TICK
