"""What the stages have in common: their arguments, and processes for their parts.

A part that breaks the device, or hangs, costs its own process, which is ended. A row says so, and the next
part begins.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from table import Rows

Part = Callable[[Rows], bool]
"""Measures and adds rows. Returns whether all was as it must be."""

SOFT = 0.8
"""Share of a part's time after which it begins nothing more."""
FAULT = "REHEARSE_FAULT"
"""In a rehearsal, PART=hang has a part never end, and PART=abort has it abort its process."""
_PR_SET_PDEATHSIG = 1


def run(stage: str, parts: Mapping[str, Part], what: str | None) -> int:
    """The stage's exit status: 0 where every part that was asked for was right, and done in time.

    parts  in order of worth: each may take half of the time that is left, the last one all of it
    """
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a file for rows, to which more are appended")
    parser.add_argument("--deadline", type=float, default=500, help="seconds for all parts together")
    parser.add_argument("--here", action="store_true", help="in this process, without a limit: for debugging")
    parser.add_argument(
        "--ended", type=int, metavar="FD", help="with --here, where to write that a part ended"
    )
    parser.add_argument(
        "parts", nargs="*", metavar="part[=seconds]", help=f"{', '.join(parts)}; default: all"
    )
    arguments = parser.parse_args()
    chosen: dict[str, float] = {}
    for asked in arguments.parts or parts:
        name, _, seconds = asked.partition("=")
        if name not in parts:
            parser.error(f"the stage {stage} has no part {name}, only {', '.join(parts)}")
        chosen[name] = float(seconds or arguments.deadline)
    if arguments.here:
        return _here(stage, {name: parts[name] for name in chosen}, chosen, arguments.out, arguments.ended)
    rows = Rows(arguments.out, stage, arguments.deadline)
    ends = time.monotonic() + arguments.deadline
    command = (sys.executable, sys.argv[0], "--out", str(arguments.out))
    failed = 0
    for place, name in enumerate(chosen):
        left = ends - time.monotonic()
        limit = left if place == len(chosen) - 1 else left / 2
        late = [(name, "not begun: the stage's time was up")]
        for _, fault in apart(command, {name: limit}) if limit >= 1 else late:
            if fault:
                failed += 1
                rows.add(part=name, failed=fault)
    return 1 if failed else 0


def _here(
    stage: str, parts: Mapping[str, Part], seconds: Mapping[str, float], out: Path, ended: int | None
) -> int:
    """The parts in this process, one after another. The first that raises ends it."""
    if ended is None:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    wrong = 0
    for name, part in parts.items():
        _inject(os.environ.get(FAULT, ""), name)
        right = part(Rows(out, stage, seconds[name]))
        wrong += not right
        if ended is not None:
            os.write(ended, b"1" if right else b"0")
    return 1 if wrong else 0


def _inject(fault: str, name: str) -> None:
    if fault == f"{name}=hang":
        threading.Event().wait()
    if fault == f"{name}=abort":
        os.abort()


def apart(
    command: Sequence[str], limits: Mapping[str, float], log: int | None = None
) -> Iterator[tuple[str, str]]:
    """Run parts of a stage's script in one process, each for so many seconds at most.

    log  a descriptor for what the process prints
    Yields each part that ends, with what went wrong, or "". The first part that exceeds its limit, or that
    ends the process, is the last one. The process ends with this one, however that ends.
    """
    heard, told = os.pipe()
    asked = (f"{name}={seconds * SOFT}" for name, seconds in limits.items())
    process = subprocess.Popen(
        [*command, "--here", "--ended", str(told), *asked],
        pass_fds=(told,),
        start_new_session=True,
        preexec_fn=end_with_parent,
        stdout=log,
        stderr=log,
    )
    os.close(told)
    try:
        for name, seconds in limits.items():
            if not select.select([heard], [], [], seconds)[0]:
                yield name, f"ended after {seconds:.0f} s"
                return
            answer = os.read(heard, 1)
            if not answer:
                yield name, f"status {process.wait()}"
                return
            yield name, "" if answer == b"1" else "not as it must be"
    finally:
        os.close(heard)
        with contextlib.suppress(ProcessLookupError):  # also what it started and left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends, however that ends: for `preexec_fn`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
