"""A host of an engine's ranks that is not the first: it starts its own, and serves nobody itself."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

import msgspec

from slipway.dist.channel import ends_of_ranks
from slipway.dist.hosts import listeners, ranks_of
from slipway.dist.mesh import Mesh
from slipway.dist.ports import tell
from slipway.dist.rendezvous import PATIENCE, Arrived, join
from slipway.dist.trust import read_key
from slipway.engine.config import EngineConfig
from slipway.engine.planned import chosen_device
from slipway.exits import BY_CODE, ENGINE_DIED, RANKS_MISSING, Exit, how_ended
from slipway.processes import STOP_SIGNALS, start_module
from slipway_kernels.cpu import shared_memory

log = logging.getLogger("slipway.engine")

LEAVES = 2.0
"""Seconds that ranks have to end by themselves."""


class NodeOrder(msgspec.Struct, frozen=True):
    """What Ray carries to a node that it starts ranks on."""

    config: EngineConfig
    key: bytes
    """The cluster's, which lies in no file that all nodes have."""


def run_node(config: EngineConfig) -> int:
    """Until a signal ends it: 0. Raises Exit where a rank ends, or the first host does."""
    config = msgspec.structs.replace(config, device=chosen_device(config.device))
    key = read_key(config.cluster_key_file)
    tell(listeners(config), key)
    own = ranks_of(config, config.node_rank)
    config = msgspec.structs.replace(
        config, machine_parts=config.machine_parts * len(own), use_tqdm_on_load=False
    )
    configs = [msgspec.structs.replace(config, rank=rank) for rank in own]
    arrived = [join(one, key) for one in configs]
    log.info("the ranks of node %d have come to node 0, and wait for the others", config.node_rank)
    for connections in arrived:
        _await_first_word(connections)
    # What ends this process is read below, and does not reach the ranks, which end with it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
    ranks = _started(configs, arrived)
    try:
        return _watch(Mesh.of(config), own, ranks)
    finally:
        _end(ranks)


def _await_first_word(connections: Arrived) -> None:
    """The first host speaks once all have come; a rank started before would think it silent."""
    connections.control.settimeout(2 * PATIENCE)
    try:
        if connections.control.recv(1, socket.MSG_PEEK):
            return connections.control.settimeout(None)
        how = "ended"
    except OSError as error:
        how = f"was not heard ({error})"
    raise Exit(RANKS_MISSING, f"Node 0 {how} before all ranks had come.", "Its log says who was missing.")


def _started(configs: Sequence[EngineConfig], arrived: Sequence[Arrived]) -> list[subprocess.Popen[bytes]]:
    mesh = Mesh.of(configs[0])
    stages = {mesh.stage(config.rank) for config in configs}
    memories = {stage: shared_memory() for stage in stages}
    ends = ends_of_ranks(ranks_of(configs[0], configs[0].node_rank), mesh.tp)
    ranks = []
    for config, connections in zip(configs, arrived, strict=True):
        memory = memories[mesh.stage(config.rank)]
        rows = [end for end in ends[config.rank] if end is not None]
        inherited = [*(one.fileno() for one in connections), memory, *(one.fileno() for one in rows)]
        ranks.append(start_module("slipway.engine.rank", config, inherited))
        for connection in (*connections, *rows):
            connection.close()
    for memory in memories.values():
        os.close(memory)
    return ranks


def _watch(mesh: Mesh, own: range, ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    while signal.sigwait((*STOP_SIGNALS, signal.SIGCHLD)) == signal.SIGCHLD:
        for rank, process in zip(own, ranks, strict=True):
            if (status := process.poll()) is not None:
                raise _cause(mesh.name(rank).capitalize(), process.pid, status)
    return 0


def _cause(name: str, pid: int, status: int) -> Exit:
    if status in (0, ENGINE_DIED.code):
        return Exit(
            ENGINE_DIED,
            f"Node 0 has ended, or cannot be reached: {name} (process {pid}) ends with it.",
            "The log of node 0 says why.",
        )
    if status > 0:
        _, how = how_ended(status)
        return Exit(BY_CODE.get(status, ENGINE_DIED), f"{name} (process {pid}) {how}.", "Its log says why.")
    code, how = how_ended(status)
    return Exit(code, f"{name} (process {pid}) {how}.")


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Where one has gone they are told by the first host; one that stands still is killed."""
    end = time.monotonic() + LEAVES
    for process in ranks:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
