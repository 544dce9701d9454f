"""A network of its own for each ground: nothing in it reaches the outside or is reached from there."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def within(netns: Path, *argv: str | os.PathLike[str]) -> list[str]:
    """The command line that runs `argv` in the namespace, keeping the process id.

    `ip netns exec` would hide the control groups' mounts.
    """
    return ["nsenter", f"--net={netns}", "--", *(os.fspath(word) for word in argv)]


def create(netns: Path, network: str) -> None:
    """Make the namespace with a device of its own and the default route through it.

    network  the node's address on it, with the network's length
    """
    family = "-6" if ":" in network else "-4"
    _ip("netns", "add", netns.name)
    for line in (
        "link set lo up",
        "link add node0 type bridge",
        # Nobody else is there who might have the address: it need not be asked for.
        f"address add {network} dev node0{' nodad' if family == '-6' else ''}",
        "link set node0 up",
        f"{family} route add default dev node0",
    ):
        _ip("-n", netns.name, *line.split())
    switch = "ipv4/ip_forward" if family == "-4" else "ipv6/conf/all/forwarding"
    forward = f"echo 1 > /proc/sys/net/{switch}"
    subprocess.run(within(netns, "sh", "-c", forward), check=True, capture_output=True, text=True)


def connect(first: Path, second: Path) -> None:
    """One network of the two namespaces' node devices, as two machines on a switch."""
    _ip("-n", second.name, *f"link add up0 type veth peer name down0 netns {first.name}".split())
    for netns, end in ((first, "down0"), (second, "up0")):
        _ip("-n", netns.name, *f"link set {end} master node0 up".split())


def route(netns: Path, target: str, gateway: str) -> None:
    """Reach a range of addresses by another machine."""
    _ip("-n", netns.name, *f"route add {target} via {gateway}".split())


@contextmanager
def entered(namespace: Path, kind: str = "net") -> Iterator[None]:
    """Put the calling thread into the namespace; sockets opened meanwhile stay connected there.

    Of the kind `pid`, not the thread but the processes that it starts meanwhile.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set(libc, there)
        yield
    finally:
        _set(libc, home)
        os.close(there)
        os.close(home)


def _set(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"This thread could not enter the namespace: {os.strerror(number)}")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
