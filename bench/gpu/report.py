"""The rows of runs as Markdown: `python bench/gpu/report.py ROWS.jsonl...`."""

from __future__ import annotations

import sys
from pathlib import Path

from table import markdown, read
from targets import Row, compared


def columns(rows: list[Row], *first: str) -> list[str]:
    """Every field of any row, in the order in which they first came; the stage only where it is asked for."""
    return [*first, *dict.fromkeys(name for row in rows for name in row if name != "stage")]


def report(rows: list[Row]) -> str:
    """A part for each stage, and in the kernels' for each operation; targets that were missed come first.

    All rows are compared again: what one was measured against may be of another run, and a row of an older
    stopwatch had a target that it is no longer compared with.
    """
    bare = [{name: value for name, value in row.items() if name not in ("target", "met")} for row in rows]
    rows = [row | compared(row, bare) for row in bare]
    parts = ["# Measured"]
    missed = [
        row
        for row in rows
        if False in (row.get("met"), row.get("correct")) or row.keys() & {"failed", "skipped"}
    ]
    if missed:
        parts += ["## Not as it should be", markdown(missed, columns(missed, "stage"))]
    for stage in dict.fromkeys(str(row["stage"]) for row in rows):
        parts.append(f"## {stage}")
        own = [row for row in rows if row["stage"] == stage]
        groups = dict.fromkeys(str(row.get("op", "")) for row in own)
        for group in groups:
            some = [row for row in own if str(row.get("op", "")) == group]
            parts.append(markdown(some, columns(some)))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(report([row for path in sys.argv[1:] for row in read(Path(path))]), end="")
