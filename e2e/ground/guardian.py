"""Waits for the process that owns a ground, and clears the ground away when it ends, however it ends.

A death signal for each child would not do: it fires when the *thread* that started the child ends, and it
leaves pods, mounts and the namespace behind.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from e2e.ground.names import Ground
from e2e.ground.remains import clear


def start(ground: Ground) -> subprocess.Popen[bytes]:
    """Start a guardian for a ground of this process, out of reach of signals meant for the test run."""
    root = Path(__file__).resolve().parent.parent.parent
    return subprocess.Popen(
        [sys.executable, "-m", "e2e.ground.guardian", ground.name, str(os.getpid())],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(name: str, owner: int) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        clear(Ground(name))
        return
    # Without the comparison a process that took the owner's number would be waited for.
    if os.getppid() == owner:
        select.select([handle], [], [])
    clear(Ground(name))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
