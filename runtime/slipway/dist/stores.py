"""Where ranks find each other before they are connected, and what torch's groups keep there."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch._C._distributed_c10d import FileStore, Store, TCPStore

from slipway.dist.hosts import address_of, rank_port
from slipway.dist.mesh import Mesh
from slipway.dist.ports import close_listeners, listen
from slipway.engine.config import EngineConfig

CONNECTS = timedelta(seconds=60)
"""For all ranks to connect, which begin at about the same time."""
_MET, _ALL_MET = "met", "all met"


class RankStore:
    """Of one engine's ranks: files on one host, and past it a port of the first rank's, which is closed as
    soon as nobody wants it any more.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Raises Exit where the first rank cannot listen."""
        self._config = config
        self._several = config.nnodes > 1
        self._listener: socket.socket | None = None
        self._listening: int | None = None
        """The same, once torch has it."""
        self._store: TCPStore | None = None
        if self._several and config.rank == 0:
            self._listener = listen(address_of(config), rank_port(config), "master_port")

    def of(self, name: str, size: int) -> Store:
        """For so many ranks that meet by this name. Waits for the first rank, where it is elsewhere."""
        if not self._several:
            return FileStore(os.path.join(self._config.rank_folder, name), size)
        self._store = self._store or self._connected()
        return self._store

    def leave(self) -> None:
        """This rank has met all whom it was to meet: returns when every rank has. No port is open then."""
        if self._store is None:
            return
        if self._store.add(_MET, 1) == Mesh.of(self._config).size:
            self._store.set(_ALL_MET, "")
        self._store.wait([_ALL_MET], CONNECTS)
        if self._listening is not None:
            close_listeners({self._listening})

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _connected(self) -> TCPStore:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._listening = listener.detach()
        return TCPStore(
            # The first rank, too, is reached where it listens.
            self._config.master_addr if listener is None else address_of(self._config),
            rank_port(self._config),
            is_master=listener is not None,
            timeout=CONNECTS,
            wait_for_workers=False,
            master_listen_fd=self._listening,  # torch's own would be a wildcard's, whatever the address
        )
