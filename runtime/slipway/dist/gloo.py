"""Ranks on several hosts meet by torch's gloo, whose connections are neither authenticated nor encrypted.

So its ports are open no longer than ranks need to find each other: the store's on the first host, by which
they do, and one of each rank.
"""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import ProcessGroupGloo

from slipway.dist.hosts import address_of, rank_port
from slipway.dist.mesh import Mesh
from slipway.dist.ports import listen
from slipway.engine.config import EngineConfig

Bytes = NDArray[np.uint8]

CONNECTS = timedelta(seconds=60)
"""For all ranks to connect, which begin at about the same time."""
WAITS = timedelta(days=1)
"""For what ranks tell each other: heartbeats find one that is lost, and not a step that takes long."""


class Meeting:
    """One rank of those that tell each other rows; every one makes the same calls in the same order."""

    def __init__(self, config: EngineConfig, name: str, rank: int, size: int) -> None:
        """name: of these ranks among the engine's. Raises Exit where the first of all cannot listen."""
        self._config = config
        self._name = name
        self.rank, self.size = rank, size
        self._listener = None
        if config.rank == 0:
            self._listener = listen(address_of(config), rank_port(config), "master_port")
        self._group: Any = None
        self._connections: list[socket.socket] = []
        self._views: dict[tuple[int, int], Bytes] = {}
        """By address and step: each a place in the program."""
        self._gathered = np.empty(0, np.uint8)

    def connect(self) -> None:
        """Waits for the others; from then on no port of it is open."""
        before = sockets()
        gloo = ProcessGroupGloo
        listening = None if self._listener is None else self._listener.detach()
        store = TCPStore(
            # The first rank, too, is reached where it listens.
            self._config.master_addr if listening is None else address_of(self._config),
            rank_port(self._config),
            is_master=listening is not None,
            timeout=CONNECTS,
            wait_for_workers=False,
            master_listen_fd=listening,  # torch's own would be a wildcard's, whatever the address
        )
        options: Any = gloo._Options()  # type: ignore[attr-defined]
        options._devices = [gloo.create_device(hostname=address_of(self._config))]
        options._timeout = CONNECTS
        between = sockets()
        self._group = gloo(PrefixStore(self._name, store), self.rank, self.size, options)
        self.gather(np.zeros(1, np.uint8))
        made = sockets() - between
        # Behind this every rank of every stage has what it wants of the store.
        mesh = Mesh.of(self._config)
        if mesh.pp > 1:
            everyone: Any = gloo(PrefixStore("everyone", store), self._config.rank, mesh.size, options)
            everyone.allreduce([torch.zeros(1)]).wait()
        self._group._set_default_timeout(WAITS)
        opened = sockets() - before | ({listening} if listening is not None else set())
        close_listeners(opened)
        self._connections = [socket.socket(fileno=os.dup(one)) for one in made if _connected(one)]

    def gather(self, own: Bytes) -> Bytes:
        """Of each rank as many bytes; valid until the next call. Raises RuntimeError where one has gone."""
        whole = self.size * own.nbytes
        if self._gathered.nbytes < whole:
            self._gathered = np.empty(whole, np.uint8)
        found = self._gathered[:whole]
        self._group._allgather_base(torch.from_numpy(found), torch.from_numpy(own)).wait()
        return found.reshape(self.size, -1)

    def exchange(self, at: int, used: int, step: int) -> None:
        """As slipway_kernels.cpu.Exchange says."""
        parts = self._views.get((at, step))
        if parts is None:
            memory = (ctypes.c_uint8 * (self.size * step)).from_address(at)
            parts = self._views[at, step] = np.frombuffer(memoryview(memory), np.uint8).reshape(
                self.size, step
            )
        parts[:, :used] = self.gather(parts[self.rank, :used])

    def leave(self) -> None:
        """Whoever waits here or there fails. Called in any thread: gloo itself cannot be told."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.leave()
        for connection in self._connections:
            connection.close()
        if self._listener is not None:
            self._listener.close()
        self._connections.clear()
        self._views.clear()
        self._group = None  # before Python ends: it has threads


def sockets() -> set[int]:
    """This process's, over IP."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:") and _is(
                int(name), socket.SO_DOMAIN, socket.AF_INET, socket.AF_INET6
            ):
                found.add(int(name))
    return found


def _is(descriptor: int, option: int, *values: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        return one.getsockopt(socket.SOL_SOCKET, option) in values


def _connected(descriptor: int) -> bool:
    return not _is(descriptor, socket.SO_ACCEPTCONN, 1)


def close_listeners(descriptors: set[int]) -> None:
    """Put sockets that nobody reaches in the place of those that listen; their owners close these."""
    with socket.socket() as nowhere:
        for one in descriptors:
            if not _connected(one):
                os.dup2(nowhere.fileno(), one, inheritable=False)
