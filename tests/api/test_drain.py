"""What clients see of a server that ends: no request is lost on a connection that they keep.

SIGSTOP stands for a busy machine: what clients do meanwhile waits in the kernel, and when the server wakes
its signal and its timers come first.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server
from slipway.api.connections import LINGER_SECONDS

pytestmark = pytest.mark.slow

CUTS = 200
"""Moments of a request, from its first byte to its last."""
TALKERS = 40


@pytest.fixture
def server(tiny_models: Callable[[str], Path]) -> Iterator[LiveServer]:
    """Without a grace, so that the drain's last part begins with the signal."""
    arguments = ("--served-model-name", "tiny", "--drain-grace", "0")
    with live_server(tiny_models("llama"), *arguments) as running:
        yield running


@contextlib.contextmanager
def stopped(server: LiveServer) -> Iterator[None]:
    """The process that serves HTTP does not run meanwhile."""
    server.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{server.process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        assert server.process.poll() is None
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


class Client:
    """One connection. Its errors are those of the socket, and EOFError for an answer that never came."""

    def __init__(self, server: LiveServer) -> None:
        parts = urlsplit(server.url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=scaled(60))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, text: bytes) -> None:
        self._socket.sendall(text)

    def receive(self) -> tuple[int, str | None]:
        """Status and Connection header of the next answer, which has a length or chunks."""
        with self._socket.makefile("rb") as stream:
            status = stream.readline()
            if not status:
                raise EOFError("the connection was closed without an answer")
            lines = iter(lambda: stream.readline().strip().decode().lower(), "")
            headers = dict(line.split(": ", 1) for line in lines)
            length = -1
            if "content-length" in headers:
                stream.read(int(headers["content-length"]))
            while "transfer-encoding" in headers and length:
                length = int(stream.readline(), 16)
                stream.read(length + 2)
        return int(status.split()[1]), headers.get("connection")

    def ask(self, text: bytes) -> tuple[int, str | None]:
        self.send(text)
        return self.receive()


def request(num_tokens: int = 2, *, stream: bool = False) -> bytes:
    fields = {"model": "tiny", "prompt": "b", "max_tokens": num_tokens, "stream": stream, "ignore_eos": True}
    body = json.dumps(fields).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


ANSWERED = (200, None)
TOLD = (200, "close")


@contextlib.contextmanager
def at_rest(server: LiveServer, number: int) -> Iterator[list[Client]]:
    """Connections that have had an answer and do not know of any end."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(number)]
        for client in clients:
            client.send(request(1))
        assert {client.receive() for client in clients} == {ANSWERED}
        yield clients


def test_a_request_that_the_signal_meets_anywhere_is_answered(server: LiveServer) -> None:
    text = request()
    cuts = [1 + number * (len(text) - 1) // (CUTS - 1) for number in range(CUTS)]
    with at_rest(server, CUTS) as clients:
        with stopped(server):
            for client, cut in zip(clients, cuts, strict=True):
                client.send(text[:cut])
            server.process.send_signal(signal.SIGTERM)
        server.wait_until_refused()
        for client, cut in zip(clients, cuts, strict=True):
            client.send(text[cut:])
        assert {client.receive() for client in clients} == {TOLD}
        assert server.process.wait(scaled(20)) == 0


@pytest.mark.parametrize("waiting", [1, 50])
def test_connections_that_wait_to_be_taken_are_served(server: LiveServer, waiting: int) -> None:
    with contextlib.ExitStack() as stack:
        with stopped(server):
            clients = [stack.enter_context(Client(server)) for _ in range(waiting)]
            server.process.send_signal(signal.SIGTERM)
        assert {client.ask(request()) for client in clients} == {TOLD}
        assert server.process.wait(scaled(20)) == 0


def test_clients_that_send_without_a_pause_are_told_before_they_are_left(server: LiveServer) -> None:
    answered = threading.Semaphore(0)

    def talk(number: int, client: Client) -> tuple[int, str | None]:
        while (seen := client.ask(request(1 + number, stream=True))) == ANSWERED:
            answered.release()
        return seen

    with at_rest(server, TALKERS) as clients, ThreadPoolExecutor(TALKERS) as talkers:
        told = [talkers.submit(talk, number, client) for number, client in enumerate(clients)]
        for _ in range(3 * TALKERS):
            assert answered.acquire(timeout=scaled(60))
        server.process.send_signal(signal.SIGTERM)
        assert {one.result() for one in told} == {TOLD}
        assert server.process.wait(scaled(20)) == 0


def test_clients_at_rest_do_not_hold_up_the_end_for_long(server: LiveServer) -> None:
    with at_rest(server, 3) as clients:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(scaled(20)) == 0
        for client in clients:
            with pytest.raises((EOFError, ConnectionError)):
                client.ask(request())


def test_ctrl_c_does_not_wait_for_clients_at_rest(server: LiveServer) -> None:
    with at_rest(server, 3):
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(LINGER_SECONDS - 1) == 0
