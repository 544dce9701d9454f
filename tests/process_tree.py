"""Processes of other processes."""

from __future__ import annotations

from pathlib import Path


def children(pid: int) -> list[int]:
    """In the order in which they were started; none of a process that has ended."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in listed.split()]
