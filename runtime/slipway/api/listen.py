"""The listening sockets, opened before anything else so that a taken port costs no model load."""

from __future__ import annotations

import errno
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipway.exits import ADDRESS_UNUSABLE, PORT_IN_USE, Exit
from slipway.sockets import EVERYWHERE, bound, everywhere

BACKLOG = 2048
_OTHER_FILES = 256
"""Open beside connections: the engine's socket, logs, a model's files while they are read."""


def room_for(connections: int) -> int:
    """As many of `connections` as this process may have open; raises its own limit of files for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(min(connections, soft - _OTHER_FILES), 1)


def listen(host: str, port: int, argument: str = "host") -> list[socket.socket]:
    """A socket for each address of `host`, which `argument` names. Raises Exit with the reason where there
    is none."""
    if host == EVERYWHERE:
        try:
            return everywhere(port, BACKLOG)
        except OSError as error:
            raise _refusal(error, host, port, argument) from None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        message = f"--{argument} {host} is no address of this machine: {error.strerror or error}."
        raise Exit(ADDRESS_UNUSABLE, message, argument=argument) from None
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sockets.append(bound(family, address, BACKLOG))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise _refusal(error, host, port, argument) from None
    return sockets


@contextmanager
def listening_at(path: Path) -> Iterator[list[socket.socket]]:
    """A Unix socket at `path`, which is removed with the block. One that nobody listens on is replaced.

    Raises Exit with the reason where it cannot be made.
    """
    try:
        if _is_left(path):
            path.unlink()
        opened = bound(socket.AF_UNIX, str(path), BACKLOG)
    except OSError as error:
        message = f"Cannot listen on {path}: {error.strerror or error}."
        taken = error.errno == errno.EADDRINUSE
        raise Exit(PORT_IN_USE if taken else ADDRESS_UNUSABLE, message, argument="uds") from None
    try:
        yield [opened]
    finally:
        with suppress(OSError):
            path.unlink()


def _is_left(path: Path) -> bool:
    """Whether it is the socket of a server that has gone."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        return client.connect_ex(str(path)) == errno.ECONNREFUSED


def _refusal(error: OSError, host: str, port: int, argument: str) -> Exit:
    if error.errno == errno.EADDRINUSE:
        return Exit(
            PORT_IN_USE,
            f"Port {port} of {host} is in use by another program.",
            f"Choose another with --port, such as --port {port + 1 if port < 65535 else port - 1}.",
            "port",
        )
    at_fault = "port" if error.errno == errno.EACCES else argument
    return Exit(ADDRESS_UNUSABLE, f"Cannot listen on {host}:{port}: {error.strerror}.", argument=at_fault)
