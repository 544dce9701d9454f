"""The cores that this process may use, and the memory that is near to each, as Linux tells them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core."""

    cpus: tuple[int, ...]
    """Its hyperthreads, by the numbers that Linux gives them; at least one."""
    node: int
    """Of the memory that is near to it."""


def cores(allowed: AbstractSet[int], system: Path = SYSTEM) -> list[Core]:
    """The cores of the allowed processors, by node and then by number. Other hyperthreads are left out.

    Some sandboxes hide the topology: then there is one node, and each processor is a core.
    """
    nodes = _nodes(system)
    found: dict[tuple[int, ...], set[int]] = {}
    for cpu in allowed:
        siblings = _read_list(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or {cpu}
        found.setdefault(tuple(sorted(siblings | {cpu})), set()).add(cpu)
    every = (Core(tuple(sorted(cpus)), nodes.get(min(cpus), 0)) for cpus in found.values())
    return sorted(every, key=lambda core: (core.node, core.cpus))


def listed(text: str) -> set[int]:
    """Numbers written as Linux does, such as `0-3,8`. Raises ValueError."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _nodes(system: Path) -> dict[int, int]:
    """The node of each processor."""
    return {
        cpu: int(folder.name.removeprefix("node"))
        for folder in system.glob("node/node[0-9]*")
        for cpu in _read_list(folder / "cpulist")
    }


def _read_list(path: Path) -> set[int]:
    try:
        return listed(path.read_text())
    except (OSError, ValueError):
        return set()
