"""What the stages have in common: their arguments, and a process for each of their parts.

A part that breaks the device, or hangs, costs itself alone: it is ended, a row says so, and the next begins.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from table import Rows

Part = Callable[[Rows], bool]
"""Measures and adds rows. Returns whether all was as it must be."""

SOFT = 0.8
"""Share of a part's time after which it begins nothing more."""


def run(stage: str, parts: Mapping[str, Part], what: str | None) -> int:
    """The stage's exit status: 0 where every part that was asked for was right, and done in time.

    parts  in order of worth: each may take half of the time that is left, the last one all of it
    """
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a file for rows, to which more are appended")
    parser.add_argument("--deadline", type=float, default=500, help="seconds for all parts together")
    parser.add_argument("--here", action="store_true", help="in this process, without a limit: for debugging")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(parts)}; default: all")
    arguments = parser.parse_args()
    chosen = arguments.parts or list(parts)
    for name in chosen:
        if name not in parts:
            parser.error(f"the stage {stage} has no part {name}, only {', '.join(parts)}")
    if arguments.here:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        rows = Rows(arguments.out, stage, arguments.deadline)
        return 1 if sum(not parts[name](rows) for name in chosen) else 0
    rows = Rows(arguments.out, stage, arguments.deadline)
    ends = time.monotonic() + arguments.deadline
    failed = 0
    for place, name in enumerate(chosen):
        left = ends - time.monotonic()
        fault = _apart(name, arguments.out, left if place == len(chosen) - 1 else left / 2)
        if fault:
            failed += 1
            rows.add(part=name, failed=fault)
    return 1 if failed else 0


def _apart(name: str, out: Path, seconds: float) -> str:
    """Run a part in a process of its own. Returns what went wrong, or "" for nothing."""
    if seconds < 1:
        return "not begun: the stage's time was up"
    command = (sys.executable, sys.argv[0], "--here", "--out", str(out), "--deadline", str(seconds * SOFT))
    process = subprocess.Popen((*command, name), start_new_session=True)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"ended after {seconds:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return "" if status == 0 else f"status {status}"
