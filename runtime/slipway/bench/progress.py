"""How far a measurement is, drawn on a terminal and nowhere else."""

from __future__ import annotations

import sys
import time

WIDTH = 30
EVERY = 0.1
"""Seconds between two drawings."""


class Bar:
    """`with Bar(count) as bar: bar.step()`"""

    def __init__(self, total: int, unit: str, *, shown: bool = True) -> None:
        self._total = total
        self._unit = unit
        self._shown = shown and sys.stderr.isatty()
        self._done = 0
        self._drawn = 0.0

    def __enter__(self) -> Bar:
        self._draw()
        return self

    def __exit__(self, *error: object) -> None:
        self._draw()
        if self._shown:
            sys.stderr.write("\n")

    def step(self) -> None:
        self._done += 1
        if time.monotonic() - self._drawn >= EVERY:
            self._draw()

    def _draw(self) -> None:
        if not self._shown:
            return
        self._drawn = time.monotonic()
        filled = WIDTH * self._done // self._total
        bar = "█" * filled + "░" * (WIDTH - filled)
        sys.stderr.write(f"\r{self._done} of {self._total} {self._unit} {bar}")
        sys.stderr.flush()
