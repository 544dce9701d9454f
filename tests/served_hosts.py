"""A server whose ranks are on several hosts, each of which has network and processes of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from live_server import LiveServer
from namespaces import Host, hosts

PORT = 8000


@dataclass(frozen=True, slots=True)
class ServedHosts:
    """Hosts, and the command that runs on each of them; the first has the API."""

    hosts: Sequence[Host]
    nodes: Sequence[LiveServer]

    @property
    def server(self) -> LiveServer:
        return self.nodes[0]

    def ranks(self, node: int) -> dict[int, str]:
        """Command lines of the ranks' own processes on a host, by their ids outside."""
        found = self.hosts[node].processes()
        return {pid: line for pid, line in found.items() if "slipway.engine" in line}

    def said(self) -> str:
        return "\n".join(f"-- node {index}\n{''.join(node.lines)}" for index, node in enumerate(self.nodes))


def begun(host: Host, arguments: Sequence[str]) -> LiveServer:
    """`slipway serve` there, not waited for."""
    process = host.start(
        *(sys.executable, "-m", "slipway", "serve", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    node = LiveServer(f"http://{host.address}:{PORT}", process)
    threading.Thread(target=lambda: node.lines.extend(process.stdout or ()), daemon=True).start()
    return node


@contextmanager
def served_hosts(model: Path, *arguments: str, number: int = 2) -> Iterator[ServedHosts]:
    """The same command on each host, once it answers. Requests come from the first one's network."""
    with hosts(number) as made, ExitStack() as entered:
        common = [str(model), *arguments, "--nnodes", str(number), "--master-addr", made[0].address]
        nodes = []
        for rank, host in enumerate(made):
            own = ["--host", host.address, "--port", str(PORT)] if rank == 0 else []
            nodes.append(begun(host, [*common, "--node-rank", str(rank), *own]))
        served = ServedHosts(made, nodes)
        entered.enter_context(made[0].entered())
        try:
            served.server.wait_until("/health", 200)
        except AssertionError as error:
            raise AssertionError(served.said()) from error
        yield served
