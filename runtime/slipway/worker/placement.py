"""Which processor each computing thread has, and on which nodes of memory weights and pages lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from slipway.dist.hosts import ranks_of
from slipway.engine.config import EngineConfig
from slipway.machine import cpu_quota
from slipway.topology import Core, cores
from slipway_kernels.cpu import spread

PINNED_FROM = 8
"""Cores, from which on each thread has its own unasked: on two, which the server's other processes need as
well, a stream is 2 % slower for it (docs/design/cpu.md)."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Of one engine or rank."""

    threads: int
    cpus: tuple[int, ...] = ()
    """A processor for each thread; none: the system moves them as it likes."""
    nodes: tuple[tuple[int, ...], ...] = ()
    """Where the machine has several nodes of memory: the processors of each that is near to the threads."""
    warning: str = ""


def placement(config: EngineConfig) -> Placement:
    """Of this process, on the processors that it may use."""
    own = ranks_of(config, config.node_rank)
    part = config.place_on_host * len(own) + config.rank - own.start
    every = cores(os.sched_getaffinity(0))
    if config.bound_cpus:
        return bound(every, config.bound_cpus, config.machine_parts, part, config.threads)
    shared = shared_out(every, cpu_quota(), config.machine_parts, part, config.threads)
    return shared if config.pin_threads else replace(shared, cpus=())


def settle(config: EngineConfig) -> list[str]:
    """Have memory lie near the threads of this process; what there is to warn of."""
    own = placement(config)
    spread(own.nodes)
    return [own.warning] if own.warning else []


def bound(
    every: Sequence[Core], lists: Sequence[Sequence[int]], parts: int, part: int, threads: int | None
) -> Placement:
    """By a list of processors for each part, in the order of its threads.

    Ranks of one stage need the same number of threads, so the shortest list sets it.
    """
    shortest = min(map(len, lists[:parts]))
    count = threads or shortest
    by_cpu = {cpu: core for core in every for cpu in core.cpus}
    missing = [cpu for one in lists[:parts] for cpu in one if cpu not in by_cpu]
    if len(lists) < parts:
        why = f"it lists the processors of {len(lists)}, and {parts} engines or ranks share this machine"
    elif missing:
        why = f"processor {missing[0]} is not among those that this process may use"
    elif count > shortest:
        why = f"it lists {shortest}, and OMP_NUM_THREADS asks for {count} threads"
    else:
        cpus = tuple(lists[part][:count])
        return Placement(count, cpus, _nodes([by_cpu[cpu] for cpu in cpus], every))
    return Placement(
        count, warning=f"Threads are not bound to processors as VLLM_CPU_OMP_THREADS_BIND says: {why}."
    )


def shared_out(every: Sequence[Core], quota: int, parts: int, part: int, threads: int | None) -> Placement:
    """An equal part of the cores, a thread for each; of two nodes, each of two parts has one.

    quota    how many processors' time all parts together have
    threads  how many are asked for instead

    Each has a core of its own where they are as many as those are, all parts have `PINNED_FROM` at least, and
    there is the time of all: fewer could meet the threads of another container on the same cores while others
    are idle.
    """
    size = len(every) // parts
    own = every[part * size : (part + 1) * size] or every
    count = threads or max(1, min(size, quota // parts))
    alone = count == size and PINNED_FROM <= len(every) <= quota
    return Placement(count, tuple(core.cpus[0] for core in own) if alone else (), _nodes(own, every))


def _nodes(own: Sequence[Core], every: Sequence[Core]) -> tuple[tuple[int, ...], ...]:
    if len({core.node for core in every}) < 2:
        return ()
    near = groupby(sorted(own, key=lambda core: core.node), lambda core: core.node)
    return tuple(tuple(cpu for core in one for cpu in core.cpus) for _, one in near)
