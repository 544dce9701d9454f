"""Ports for servers that a test starts seconds later: the kernel gives them to nobody meanwhile."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
"""Below are the usual ports of what a developer may run."""
_RANDOM = random.SystemRandom()
"""A test may seed the common one, in two processes alike."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """At every address of this network namespace."""
    return free_ports(1)


def free_ports(number: int) -> int:
    """The first of so many that follow each other.

    Not of those that connections and listeners at port 0 get: one that was free a moment ago would soon be
    someone else's.
    """
    first, last = map(int, _EPHEMERAL.read_text().split())
    ours = [*range(LOWEST, first - number + 1), *range(last + 1, 65_536 - number + 1)]
    while True:
        found: int = _RANDOM.choice(ours or range(LOWEST, 65_536 - number + 1))
        if all(_is_free(port) for port in range(found, found + number)):
            return found


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True
