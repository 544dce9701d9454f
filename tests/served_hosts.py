"""A server whose ranks are on several hosts, each of which has network and processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
from e2e.ground.patience import scaled

from live_server import LiveServer
from namespaces import Host, hosts

PORT = 8000
OURS = ("-m slipway", "ray::Occupant")
"""In the command lines of what we start, and of what Ray does for us."""
CONTEXT = 32_768
LONG = 30_000
"""Tokens: a stream of so many is not over before a host is lost."""


def long() -> tuple[str, ...]:
    """Arguments of a tiny model that may write so much."""
    return (
        *("--dtype", "float32", "--max-model-len", str(CONTEXT)),
        *("--hf-overrides", json.dumps({"max_position_embeddings": CONTEXT})),
    )


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def answers(url: str) -> list[str]:
    api = client(url)
    model = api.models.list().data[0].id
    asked = ([5, 6, 7], list(range(20, 60)))
    made = (api.completions.create(model=model, prompt=one, max_tokens=32, temperature=0.0) for one in asked)
    return [one.choices[0].text for one in made]


def begin_stream(served: ServedHosts) -> Iterator[object]:
    api = client(served.server.url)
    stream = api.completions.create(
        model=api.models.list().data[0].id,
        prompt=[5, 6, 7],
        max_tokens=LONG,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    chunks = iter(stream)
    next(chunks)
    return chunks


@dataclass(frozen=True, slots=True)
class ServedHosts:
    """Hosts, and the command that runs on each of them; the first has the API."""

    hosts: Sequence[Host]
    nodes: Sequence[LiveServer]

    def left(self, within: float, ours: Sequence[str] = OURS) -> list[dict[int, str]]:
        """What of ours still runs on each host by then; nothing where all has ended."""
        end = time.monotonic() + scaled(within)
        while True:
            for node in self.nodes:
                node.process.poll()
            found = [
                {pid: line for pid, line in host.processes().items() if any(one in line for one in ours)}
                for host in self.hosts
            ]
            if not any(found):
                return []
            if time.monotonic() > end:
                return found
            self.server.wait(0.05)

    @property
    def server(self) -> LiveServer:
        return self.nodes[0]

    def ranks(self, node: int) -> dict[int, str]:
        """Command lines of the ranks' own processes on a host, by their ids outside."""
        found = self.hosts[node].processes()
        return {pid: line for pid, line in found.items() if "-m slipway.engine" in line}

    def said(self) -> str:
        return "\n".join(f"-- node {index}\n{''.join(node.lines)}" for index, node in enumerate(self.nodes))


def begun(host: Host, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> LiveServer:
    """`slipway serve` there, not waited for."""
    process = host.start(
        *(sys.executable, "-m", "slipway", "serve", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
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
        yield entered.enter_context(answering(ServedHosts(made, nodes)))


@contextmanager
def answering(served: ServedHosts) -> Iterator[ServedHosts]:
    """From where it answers on; requests come from the first host's network."""
    with served.hosts[0].entered():
        try:
            served.server.wait_until("/health", 200)
        except AssertionError as error:
            raise AssertionError(served.said()) from error
        yield served
