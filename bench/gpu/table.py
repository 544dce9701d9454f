"""Rows of a run: appended one by one to a file, and shown as a table."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from targets import Row, compared


class Rows:
    """A JSON-lines file that has every row measured so far, whenever the run is cut off.

    A row that has a target says which, and whether it was met: None where nothing was measured.
    """

    def __init__(self, path: Path, stage: str, deadline: float) -> None:
        self._path = path
        self._stage = stage
        self._deadline = time.monotonic() + deadline
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def late(self) -> bool:
        """Whether the stage should begin nothing more."""
        return time.monotonic() > self._deadline

    def add(self, **fields: object) -> None:
        row = {"stage": self._stage, **fields}
        row |= compared(row, read(self._path))
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        shown = (f"{name}={_shown(value)}" for name, value in row.items() if name != "stage")
        print(f"{self._stage}: {' '.join(shown)}", flush=True)


def commit() -> str:
    """What was measured: the commit, marked where files differ from it, or outside of a checkout what
    SLIPWAY_COMMIT says."""
    words = ("git", "describe", "--always", "--dirty", "--abbrev=12")
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return os.environ.get("SLIPWAY_COMMIT", "unknown")
    return found.stdout.strip()


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def markdown(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> str:
    """A table; what was not measured is an empty cell."""
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    lines += [f"| {' | '.join(_shown(row.get(name)) for name in columns)} |" for row in rows]
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
