"""What this process may use of the machine: cgroup limits first, then the machine itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
_USED = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}


def usable_cpus() -> int:
    """Processors by affinity and by the cgroup's quota, rounded down; at least 1."""
    return max(1, min(len(os.sched_getaffinity(0)), cpu_quota()))


def whole_memory() -> int:
    """Bytes that this process may ever have: the cgroup's limit, or the machine's memory if that is less.

    The same at every start, whatever else runs and however much of it the process has taken already.
    """
    return min(_meminfo("MemTotal"), *(limit for limit, _ in _cgroup_files()))


def available_memory() -> int:
    """Bytes that can still be had: what the machine has free, or what the cgroup leaves if that is less."""
    return max(0, min(_meminfo("MemAvailable"), _cgroup_available()))


def cpu_quota() -> int:
    """Processors whose time the cgroup gives, rounded down; without a limit more than any machine has."""
    fields = _read(_CGROUP / "cpu.max").split()  # v2: "quota period" or "max period"
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) // int(fields[1])
    quota = _number(_CGROUP / "cpu/cpu.cfs_quota_us")
    period = _number(_CGROUP / "cpu/cpu.cfs_period_us")
    if quota is not None and period and quota > 0:
        return quota // period
    return 1 << 16


def _meminfo(name: str) -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return _UNLIMITED


def _cgroup_available() -> int:
    for limit, limit_file in _cgroup_files():
        used = _number(limit_file.parent / _USED[limit_file.name])
        if limit < _UNLIMITED and used is not None:
            return limit - used + _reclaimable(limit_file)
    return _UNLIMITED


def _cgroup_files() -> Iterator[tuple[int, Path]]:
    """The limit of memory and the file that has it, in the second version of cgroups and in the first."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _number(_CGROUP / name)
        yield _UNLIMITED if limit is None else limit, _CGROUP / name


def _reclaimable(beside: Path) -> int:
    """Page cache charged to the cgroup, which it gives back under pressure."""
    for line in _read(beside.parent / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
