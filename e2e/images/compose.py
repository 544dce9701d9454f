"""Compose files, run by podman-compose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.images.containers import LIMITS, PODMAN


@contextmanager
def running(file: Path) -> Iterator[None]:
    """The services of the file, up meanwhile; containers, networks and volumes go at the end."""
    try:
        compose(file, "up", "--detach")
        yield
    finally:
        compose(file, "down", "--volumes", "--timeout", "0")


def compose(file: Path, *words: str) -> str:
    """What a command of podman-compose prints."""
    globally = f"--podman-args={' '.join(PODMAN[1:])}"
    each = f"--podman-run-args={' '.join(LIMITS)}"
    command = [sys.executable, "-m", "podman_compose", globally, each, "--file", str(file), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
