"""Compose files, run by podman-compose; it is fetched when a test first needs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.ground.build import cache
from e2e.images.containers import LIMITS, PODMAN

VERSION = "1.6.0"


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
    environ = {**os.environ, "PYTHONPATH": str(_program())}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


def _program() -> Path:
    """A folder for PYTHONPATH."""
    place = cache() / f"podman-compose-{VERSION}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as unfinished:
            target = Path(unfinished) / "site"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target)]
            subprocess.run([*pip, f"podman-compose=={VERSION}"], check=True)
            target.rename(place)
    return place
