"""Who comes to a port between hosts and has no business there."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable

from e2e.ground.patience import scaled

from slipway.dist.trust import Caller, Refused

Where = tuple[str, int]


def _hung_up_on(connection: socket.socket) -> None:
    """What it is sent is read until it is closed."""
    connection.settimeout(scaled(15))
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            pass


def unauthenticated(where: Where, key: bytes) -> str:
    with socket.create_connection(where) as connection:
        with contextlib.suppress(Exception):
            Caller(b"guessed" * 8, "anything", b"").challenge(connection)
        _hung_up_on(connection)
    return "its proof is wrong"


def oversized(where: Where, key: bytes) -> str:
    with socket.create_connection(where) as connection:
        connection.sendall(struct.pack("!I", 1 << 31))
        _hung_up_on(connection)
    return "it speaks otherwise"


class _Overheard:
    """A connection, and what goes out on it."""

    def __init__(self, connection: socket.socket) -> None:
        self.sent: list[bytes] = []
        self._connection = connection
        self.recv, self.settimeout = connection.recv, connection.settimeout

    def sendall(self, data: bytes) -> None:
        self.sent.append(bytes(data))
        self._connection.sendall(data)


def replayed(where: Where, key: bytes) -> str:
    """Who has the key is overheard by one who has not."""
    with socket.create_connection(where) as connection:
        overheard = _Overheard(connection)
        with contextlib.suppress(Refused):  # it has the key, and no business here either
            Caller(key, "nothing that is known", b"").challenge(overheard)  # type: ignore[arg-type]
    greeting, proof = overheard.sent
    with socket.create_connection(where) as connection:
        connection.sendall(greeting)
        connection.settimeout(scaled(15))
        connection.recv(4096)
        connection.sendall(proof)
        _hung_up_on(connection)
    return "its proof is wrong"


ALL: tuple[Callable[[Where, bytes], str], ...] = (unauthenticated, oversized, replayed)
"""Each is hung up on, and returns what the log says of it."""


def refused_all(where: Where, key: bytes, said: Callable[[], str], patience: float = 10) -> None:
    """Have all of them come, and many that say nothing. AssertionError where one is not refused."""
    with contextlib.ExitStack() as silent:
        for _ in range(40):  # more than a port has patience with
            silent.enter_context(socket.create_connection(where))
        for stranger in ALL:
            before = said()
            why, end = stranger(where, key), time.monotonic() + scaled(patience)
            while f"on port {where[1]}: {why}" not in said()[len(before) :]:
                assert time.monotonic() < end, f"{why!r} was not said:\n{said()}"
                time.sleep(0.02)
