"""What a server listens on beside its API: each port is at one address of this host, and in the log."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slipway.exits import ADDRESS_UNUSABLE, BAD_ARGUMENTS, PORT_IN_USE, Exit

log = logging.getLogger("slipway.dist")

_SIOCGIFADDR = 0x8915
"""Of linux/sockios.h: the first address of an interface."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A row of the table."""

    purpose: str
    address: str
    port: int | None
    """None: the kernel chooses one."""
    authenticated: bool
    """By the cluster's key. No port but the API's is encrypted."""
    open_until: str

    def __str__(self) -> str:
        port = "a free port" if self.port is None else f"port {self.port}"
        trust = "authenticated by HMAC" if self.authenticated else "not authenticated"
        return f"{self.address}, {port}: {self.purpose}; {trust}, not encrypted; open until {self.open_until}"


def tell(listeners: Sequence[Listener], key: bytes) -> None:
    """Log the table; one warning where strangers may come in."""
    for listener in listeners:
        log.info("listening on %s", listener)
    if not key and listeners:
        ports = ", ".join(
            f"{one.address}:{'(a free port)' if one.port is None else one.port}" for one in listeners
        )
        log.warning(
            "There is no --cluster-key-file: whoever reaches %s may take a rank's place in this server, and "
            "read and change what it computes. Keep others off that network, or give every node one key.",
            ports,
        )


def listen(address: str, port: int, argument: str) -> socket.socket:
    """Listen on an address of this host, and on no other. Raises Exit, which names the argument."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise Exit(
            ADDRESS_UNUSABLE,
            f"{address} is not a name that this host knows: {error.strerror}.",
            "Give an address of this host.",
            argument,
        ) from error
    if ipaddress.ip_address(where[0]).is_unspecified:
        raise Exit(
            BAD_ARGUMENTS,
            f"{address} means every address of this host, and what the server's parts say to each other "
            "is for one network.",
            "Give the address that this host has there.",
            argument,
        )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        code = PORT_IN_USE if error.errno == errno.EADDRINUSE else ADDRESS_UNUSABLE
        raise Exit(
            code,
            f"Ranks cannot meet at {where[0]} on port {port}: {error.strerror}.",
            "--master-port, or VLLM_PORT for all but the first, chooses others; VLLM_HOST_IP is an address "
            "of this host.",
            argument,
        ) from error
    return listener


def own_address(towards: str) -> str:
    """That by which this host reaches another; nothing is sent. Raises Exit."""
    try:
        family, _, _, _, where = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            found: str = probe.getsockname()[0]
    except OSError as error:
        raise Exit(
            ADDRESS_UNUSABLE,
            f"This host has no way to {towards}: {error.strerror}.",
            "--master-addr is the address of node 0; VLLM_HOST_IP is this host's own.",
            "master_addr",
        ) from error
    return found


def interface_of(address: str) -> str | None:
    """The network interface of this host that has this IPv4 address as its first, or this IPv6 one; None
    where none has.
    """
    wanted = ipaddress.ip_address(socket.getaddrinfo(address, 0)[0][4][0])
    if wanted.is_loopback:
        return "lo"
    if wanted.version == 6:
        rows = (line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines())
        return next((row[-1] for row in rows if bytes.fromhex(row[0]) == wanted.packed), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                request = struct.pack("256s", name.encode())
                if fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24] == wanted.packed:
                    return name
    return None


class Socket(NamedTuple):
    """A closed socket's descriptor is soon another's; its name is not."""

    descriptor: int
    name: str
    """The kernel's, with the inode."""


def sockets() -> set[Socket]:
    """This process's, over IP."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            one = Socket(int(entry), os.readlink(f"/proc/self/fd/{entry}"))
            if one.name.startswith("socket:") and _is(
                one.descriptor, socket.SO_DOMAIN, socket.AF_INET, socket.AF_INET6
            ):
                found.add(one)
    return found


def _is(descriptor: int, option: int, *values: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        return one.getsockopt(socket.SOL_SOCKET, option) in values


def connected(descriptor: int) -> bool:
    """Whether it is no socket that listens."""
    return not _is(descriptor, socket.SO_ACCEPTCONN, 1)


@contextmanager
def without_listeners() -> Iterator[set[Socket]]:
    """Sockets that begin to listen within no longer do so afterwards. Yields those that were there before."""
    before = sockets()
    try:
        yield before
    finally:
        close_listeners(one.descriptor for one in sockets() - before)


def close_listeners(descriptors: Iterable[int]) -> None:
    """Put sockets that nobody reaches in the place of those that listen; their owners close these."""
    with socket.socket() as nowhere:
        for one in descriptors:
            with suppress(OSError):  # its owner was faster
                if not connected(one):
                    os.dup2(nowhere.fileno(), one, inheritable=False)
