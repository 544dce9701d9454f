"""Rows of a run: appended one by one to a file, and shown as a table."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Row = dict[str, object]


class Rows:
    """A JSON-lines file that has every row measured so far, whenever the run is cut off."""

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
        with self._path.open("a") as file:
            file.write(json.dumps({"stage": self._stage, **fields}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        shown = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
        print(f"{self._stage}: {shown}", flush=True)


def commit() -> str:
    """What was measured: the commit, marked where files differ from it; "unknown" outside of a checkout."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or os.environ.get("SLIPWAY_COMMIT", "unknown")


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
