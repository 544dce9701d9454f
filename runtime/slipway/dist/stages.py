"""Pipeline stages on several hosts: a rank opens a port for the one of its place in the next stage.

The first rank tells the latter when, and where. What comes and knows the key and its rank has the connection
of `channel`; the port closes behind it.
"""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import Future, InvalidStateError

from slipway.dist.channel import SocketChannel
from slipway.dist.gate import Gate
from slipway.dist.hosts import address_of, rows_port
from slipway.dist.mesh import Mesh
from slipway.dist.ports import listen
from slipway.dist.rendezvous import keep
from slipway.dist.trust import Caller, Distrusted, Greeting
from slipway.engine.config import EngineConfig
from slipway.exits import RANKS_MISSING, Exit

ROWS = "rows"
CONNECTS = 60.0
"""Seconds for the two to find each other, which both begin when they are told."""


class Doorway:
    """Where a rank awaits the one that its rows go to, which is on another host."""

    def __init__(self, config: EngineConfig, key: bytes) -> None:
        """Raises Exit where it cannot listen."""
        mesh = Mesh.of(config)
        rank = config.rank + mesh.tp
        self._name = mesh.name(rank).capitalize()
        self._claim = _claim(rank)
        self._came: Future[socket.socket] = Future()
        self._gate = Gate(
            listen(address_of(config), rows_port(config, config.rank), "master_port"), key, self
        )

    def wait(self) -> SocketChannel:
        """Until it has come; the port is closed then. Raises Exit where it does not come."""
        try:
            return SocketChannel(self._came.result(CONNECTS), self._name)
        except TimeoutError:
            message = f"{self._name} has not come for its rows within {CONNECTS:g} s."
            raise Exit(RANKS_MISSING, message, RANKS_MISSING.hint, "nnodes") from None
        finally:
            self._gate.close()

    def refusal(self, greeting: Greeting) -> str:
        """For the gate."""
        if greeting.purpose != ROWS or greeting.claim != self._claim:
            return f"it is not {self._name}, to which rows go"
        return "it has come already" if self._came.done() else ""

    def take(self, greeting: Greeting, connection: socket.socket) -> None:
        """For the gate."""
        keep(connection)
        with contextlib.suppress(InvalidStateError):
            return self._came.set_result(connection)
        connection.close()


def reach(config: EngineConfig, key: bytes, address: str) -> SocketChannel:
    """The channel from the rank of its place in the stage before, which has opened its port at this address.

    Raises Exit.
    """
    mesh = Mesh.of(config)
    before = config.rank - mesh.tp
    where = (address, rows_port(config, before))
    name = mesh.name(before).capitalize()
    try:
        connection = socket.create_connection(where, CONNECTS, (address_of(config), 0))
        try:
            keep(connection)
            Caller(key, ROWS, _claim(config.rank)).challenge(connection)
        except BaseException:
            connection.close()
            raise
    except (Distrusted, OSError) as error:
        raise Exit(
            RANKS_MISSING,
            f"{name} cannot be reached for its rows at {where[0]}:{where[1]}: {error}.",
            "Let every node of the server reach the others on the ports from VLLM_PORT on, and give each the "
            "same --cluster-key-file.",
            "nnodes",
        ) from error
    return SocketChannel(connection, name)


def _claim(rank: int) -> bytes:
    return rank.to_bytes(4, "big")
