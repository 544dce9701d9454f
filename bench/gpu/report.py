"""The rows of a run as Markdown: `python bench/gpu/report.py ROWS.jsonl`."""

from __future__ import annotations

import sys
from pathlib import Path

from table import Row, commit, markdown, read


def columns(rows: list[Row]) -> list[str]:
    """Every field of any row, in the order in which they first came."""
    return list(dict.fromkeys(name for row in rows for name in row if name != "stage"))


def report(rows: list[Row]) -> str:
    parts = [f"# Measured on {rows[0].get('device', 'an unnamed device') if rows else 'nothing'}, {commit()}"]
    for stage in dict.fromkeys(str(row["stage"]) for row in rows):
        own = [row for row in rows if row["stage"] == stage]
        groups = dict.fromkeys(str(row.get("op", row.get("what", ""))) for row in own)
        if stage != "kernels":
            parts += [f"## {stage}", markdown(own, columns(own))]
            continue
        parts.append(f"## {stage}")
        for group in groups:
            some = [row for row in own if str(row.get("op", row.get("what", ""))) == group]
            parts.append(markdown(some, columns(some)))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(report(read(Path(sys.argv[1]))), end="")
