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
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import ProcessGroupGloo

from slipway.dist.hosts import address_of
from slipway.dist.ports import connected, sockets, without_listeners
from slipway.dist.stores import CONNECTS, RankStore
from slipway.engine.config import EngineConfig

Bytes = NDArray[np.uint8]

WAITS = timedelta(days=1)
"""For what ranks tell each other: heartbeats find one that is lost, and not a step that takes long."""


class Meeting:
    """One rank of those that tell each other rows; every one makes the same calls in the same order."""

    def __init__(self, config: EngineConfig, name: str, rank: int, size: int) -> None:
        """name: of these ranks among the engine's. Raises Exit where the first of all cannot listen."""
        self._config = config
        self._name = name
        self.rank, self.size = rank, size
        self._store = RankStore(config)
        self._group: Any = None
        self._connections: list[socket.socket] = []
        self._views: dict[tuple[int, int], Bytes] = {}
        """By address and step: each a place in the program."""
        self._gathered = np.empty(0, np.uint8)

    def connect(self) -> None:
        """Waits for the others; from then on no port of it is open."""
        store = PrefixStore(self._name, self._store.of(self._name, self.size))
        gloo: Any = ProcessGroupGloo  # whose stubs have little of it
        options = gloo._Options()
        options._timeout = CONNECTS
        with without_listeners() as before:
            options._devices = [gloo.create_device(hostname=address_of(self._config))]
            self._group = gloo(store, self.rank, self.size, options)
            self.gather(np.zeros(1, np.uint8))
            made = [one.descriptor for one in sockets() - before]
            self._connections = [socket.socket(fileno=os.dup(one)) for one in made if connected(one)]
        self._store.leave()
        self._group._set_default_timeout(WAITS)

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
        self._store.close()
        self._connections.clear()
        self._views.clear()
        self._group = None  # before Python ends: it has threads
