"""How far a download or a load is, told to the engine and, if asked, to the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""progress(phase "download" | "load" | "warmup", what is done, what there is to do: bytes or steps)"""

_LOG_EVERY = 5.0
_DRAW_EVERY = 0.1
_VERBS = {"download": "Downloading", "load": "Loading"}


def announced(progress: Progress) -> Progress:
    """`progress`, shown on standard error too: a bar on a terminal, else a line now and then."""
    terminal = sys.stderr.isatty()
    last = 0.0
    ended = ""

    def show(phase: str, done: int, total: int) -> None:
        nonlocal last, ended
        progress(phase, done, total)
        now = time.monotonic()
        finished = 0 < total <= done
        due = now - last >= (_DRAW_EVERY if terminal else _LOG_EVERY)
        if ended == phase or not (finished or due):
            return
        last = now
        ended = phase if finished else ""
        text = f"{_VERBS.get(phase, phase)} weights: {_amount(done)} of {_amount(total)}"
        if terminal:
            filled = 30 * done // max(total, 1)
            bar = "█" * filled + "░" * (30 - filled)
            sys.stderr.write(f"\r{text} {bar}" + ("\n" if finished else ""))
        else:
            sys.stderr.write(f"{text} ({100 * done // max(total, 1)} %)\n")
        sys.stderr.flush()

    return show


def _amount(octets: int) -> str:
    return f"{octets / 1e9:.2f} GB" if octets >= 1e9 else f"{octets / 1e6:.1f} MB"
