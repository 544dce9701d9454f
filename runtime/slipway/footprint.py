"""How much of the host's memory processes take: what is theirs, and no page cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_COUNTED = ("Pss_Anon:", "Pss_Shmem:")
"""Anonymous and shared memory. A page that several processes have counts in parts, once in all."""


def footprint(pid: int) -> int:
    """Bytes of a process and of all that it has started; 0 where the kernel does not say.

    The kernel walks their page tables for it: milliseconds for each gigabyte.
    """
    return sum(map(_of_one, _family(pid)))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(task).split():
            yield from _family(int(child))


def _of_one(pid: int) -> int:
    lines = _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_COUNTED))


def _read(file: Path) -> str:
    """Nothing of a process that has ended, or of a file that this kernel does not have."""
    try:
        return file.read_text()
    except OSError:
        return ""
