"""Several hosts on one machine: namespaces for network, processes and shared memory, joined by a switch.

What runs there dies with the test that made them, however that ends and whatever forked itself away: the
first process of each host ends when the pipe from its owner closes, and the kernel kills the others then.
Nothing has a name outside, so any number of tests have hosts at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from e2e.ground.namespaces import entered
from e2e.ground.patience import scaled

from process_tree import children

needs_hosts = pytest.mark.skipif(
    bool(os.geteuid()) or not all(map(shutil.which, ("unshare", "nsenter", "ip", "nft"))),
    reason="Hosts of their own need root and the commands unshare, nsenter, ip and nft.",
)

_LENGTH = 24
_FIRST = """
trap '' CHLD
hostname "$0" && ip link set lo up && mount -t tmpfs shm /dev/shm && echo up && exec cat
"""
_SWITCH = "link add switch0 type bridge; link set switch0 up"


@dataclass(frozen=True)
class Host:
    """A host by its first process, as numbered outside; files are the machine's, but for /dev/shm."""

    name: str
    address: str
    pid: int
    switch: int
    started: list[subprocess.Popen[Any]] = field(default_factory=list, repr=False)

    def start(self, *argv: str | os.PathLike[str], **popen: Any) -> subprocess.Popen[Any]:
        """Run a command there, with the arguments of `Popen`; its process id is as numbered outside."""
        command = _within(self.pid, *argv, folder=popen.pop("cwd", os.getcwd()))
        with entered(self._namespace("pid"), "pid"):
            process = subprocess.Popen(command, **popen)
        self.started.append(process)
        return process

    def run(self, *argv: str | os.PathLike[str], patience: float = 60, **popen: Any) -> str:
        """What a command printed there. Raises AssertionError with that where it fails."""
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with self.start(*argv, stdin=subprocess.DEVNULL, **output, **popen) as process:
            try:
                printed, _ = process.communicate(timeout=scaled(patience))
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, f"{argv} ended with {process.returncode} on {self.name}:\n{printed}"
        return str(printed)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread on its network; sockets opened meanwhile stay connected there."""
        with entered(self._namespace("net")):
            yield

    def cut_off(self) -> None:
        """Let the switch drop all that comes from the host or goes to it, without a word to either side."""
        for line in (
            f"add table bridge {self.name}",
            f"add chain bridge {self.name} forward {{ type filter hook forward priority 0; }}",
            f"add rule bridge {self.name} forward iifname {self.name} drop",
            f"add rule bridge {self.name} forward oifname {self.name} drop",
        ):
            _do(self.switch, "nft", line)

    def mend(self) -> None:
        """End what `cut_off` did."""
        _do(self.switch, "nft", f"delete table bridge {self.name}")

    def processes(self) -> dict[int, str]:
        """Command lines of what runs there, the host's first process left out, by their ids outside."""
        namespace = os.readlink(self._namespace("pid"))
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/pid") == namespace and not _ended(entry):
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    )
            except OSError:
                continue
        found.pop(self.pid, None)
        return found

    def _namespace(self, kind: str) -> Path:
        return Path(f"/proc/{self.pid}/ns/{kind}")


@contextmanager
def hosts(number: int = 2) -> Iterator[list[Host]]:
    """That many, with the addresses 10.76.0.1, 10.76.0.2, … on eth0, each reaching the others."""
    with ExitStack() as ends:
        switch = ends.enter_context(_first_process("switch"))
        for line in _SWITCH.split("; "):
            _do(switch, "ip", *line.split())
        made = []
        for index in range(number):
            name = f"host{index}"
            host = Host(name, f"10.76.0.{index + 1}", ends.enter_context(_first_process(name)), switch)
            ends.callback(_end, host.started)
            for pid, line in (
                (switch, f"link add {host.name} type veth peer name eth0 netns {host.pid}"),
                (switch, f"link set {host.name} master switch0 up"),
                (host.pid, f"address add {host.address}/{_LENGTH} dev eth0"),
                (host.pid, "link set eth0 up"),
                # Programs look for their own address by a route to somewhere far.
                (host.pid, "route add default dev eth0"),
            ):
                _do(pid, "ip", *line.split())
            made.append(host)
        yield made


@contextmanager
def _first_process(name: str) -> Iterator[int]:
    """A host that has no network yet; when it ends, so does all that runs there."""
    kinds = ("--net", "--pid", "--mount", "--uts", "--ipc")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = ["unshare", *kinds, "--fork", "--kill-child", "--mount-proc", "sh", "-c", _FIRST, name]
    with subprocess.Popen(command, **pipes) as process:
        output: IO[str] = process.stdout
        assert output.readline() == "up\n", f"The host {name} could not be made."
        (first,) = children(process.pid)
        yield first


def _ended(process: Path) -> bool:
    """By its state: a command line is empty also while the process begins another program."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")


def _end(started: list[subprocess.Popen[Any]]) -> None:
    """The kernel ends no host while one of its processes waits, dead, for a parent outside of it."""
    for process in started:
        process.kill()
        process.wait()


def _within(pid: int, *argv: str | os.PathLike[str], folder: str) -> list[str]:
    kinds = ("--net", "--mount", "--uts", "--ipc")
    return ["nsenter", f"--target={pid}", *kinds, f"--wdns={folder}", "--", *map(os.fspath, argv)]


def _do(pid: int, *argv: str) -> None:
    done = subprocess.run(_within(pid, *argv, folder="/"), capture_output=True, text=True)
    assert done.returncode == 0, f"`{' '.join(argv)}` failed: {done.stderr.strip()}"
