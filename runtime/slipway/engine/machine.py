"""What this process may use of the machine: cgroup limits first, then the machine itself."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60


def usable_cpus() -> int:
    """Processors by affinity and by the cgroup's quota, rounded down; at least 1."""
    return max(1, min(len(os.sched_getaffinity(0)), _cpu_quota()))


def available_memory() -> int:
    """Bytes that can still be had: what the machine has free, or what the cgroup leaves if that is less."""
    return max(0, min(_machine_available(), _cgroup_available()))


def _cpu_quota() -> int:
    fields = _read(_CGROUP / "cpu.max").split()  # v2: "quota period" or "max period"
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) // int(fields[1])
    quota = _number(_CGROUP / "cpu/cpu.cfs_quota_us")
    period = _number(_CGROUP / "cpu/cpu.cfs_period_us")
    if quota is not None and period and quota > 0:
        return quota // period
    return 1 << 16


def _machine_available() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return _UNLIMITED


def _cgroup_available() -> int:
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _number(_CGROUP / limit_file), _number(_CGROUP / used_file)
        if limit is not None and used is not None and limit < _UNLIMITED:
            return limit - used + _reclaimable(_CGROUP / limit_file)
    return _UNLIMITED


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
