"""Compose files, run by podman-compose; it is fetched when a test first needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.ground.build import cache
from e2e.images.containers import LIMITS, PODMAN
from slipway.load.package_index import Release, fetch

VERSION = "1.6.0"
MODULES = {
    "podman_compose.py": Release(
        f"podman_compose-{VERSION}-py3-none-any.whl",
        "98e48af25d44c10ecef948163bfcca002e32aa8bbb7e66593fbd4faff7270c30",
    ),
    "dotenv": Release(
        "python_dotenv-1.2.1-py3-none-any.whl",
        "b81ee9561e9ca4004139c6cbba3a238c32b03e4894671e181b671e8cb8425d61",
    ),
}
"""What it is made of, but for PyYAML, which this project has anyway."""


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
    for name, wheel in MODULES.items():
        fetch(wheel, name, place / name)
    return place
