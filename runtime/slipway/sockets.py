"""Listening sockets on every address of a machine, of whichever families of addresses it has."""

from __future__ import annotations

import errno
import socket
from typing import Any

EVERYWHERE = "::"
"""As a host: all addresses of IPv6 and of IPv4, or of the one that the machine has."""
_OFF = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""What the kernel says of a family that it was built or booted without, or that is switched off."""


def bound(family: int, address: Any, backlog: int) -> socket.socket:
    """A socket that listens and does not block. One of IPv6 takes no IPv4, whatever the machine's default is:
    clients would have other names in logs. Raises OSError."""
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.listen(backlog)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def everywhere(port: int, backlog: int) -> list[socket.socket]:
    """A socket of each family that the machine has, on one port, which the system chooses where it is 0.

    Raises OSError where there is no family, or the port is taken in one.
    """
    sockets: list[socket.socket] = []
    try:
        for family, host in ((socket.AF_INET6, EVERYWHERE), (socket.AF_INET, "0.0.0.0")):
            try:
                sockets.append(bound(family, (host, port), backlog))
            except OSError as error:
                if error.errno not in _OFF or (family == socket.AF_INET and not sockets):
                    raise
            else:
                port = sockets[-1].getsockname()[1]
    except OSError:
        for opened in sockets:
            opened.close()
        raise
    return sockets
