"""Clients that mean harm, all at once and at a real server: whoever asks beside them is answered."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from e2e.ground.patience import SLOWNESS, scaled

from live_server import LiveServer, live_server

pytestmark = pytest.mark.slow

IDLE, DRIPPING = 1000, 50
PATIENCE = 3 * SLOWNESS
"""Seconds for an answer of /live on a machine that runs other tests; one list of strings took 6 before."""
MIB = 1 << 20
MANY = 300_000
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}

BODIES: dict[str, tuple[str, int, Callable[[], bytes]]] = {
    "strings for ids": ("/detokenize", 400, lambda: as_json(tokens=["x"] * (4 * MIB // 4))),
    "lists in lists": ("/v1/completions", 400, lambda: as_json(prompt=[[[]] * 1000] * 2000)),
    "objects": ("/v1/chat/completions", 400, lambda: as_json(**CHAT, documents=[{"a": 1}] * MANY)),
    "keys": ("/v1/chat/completions", 400, lambda: as_json(**dict.fromkeys(map(str, range(MANY)), 1))),
    "keys of a field": ("/v1/completions", 400, lambda: as_json(prompt="a", logit_bias=names(MANY))),
    "unknown keys": ("/v1/completions", 400, lambda: as_json(prompt="a", structured_outputs=names(MANY))),
    "a text": ("/v1/completions", 400, lambda: as_json(prompt="ab " * (2 * MIB))),
    "a chat": ("/v1/chat/completions", 400, lambda: as_json(messages=CHAT["messages"] * 4000)),
    "too much": ("/v1/completions", 413, lambda: b" " * (9 * MIB)),
}


def as_json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def names(number: int) -> dict[str, str]:
    return {str(index): "x" for index in range(number)}


def connect(server: LiveServer) -> socket.socket:
    parts = urlsplit(server.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=scaled(60))


def large_header(server: LiveServer) -> bytes:
    with connect(server) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nX: ")
        for _ in range(24):
            client.sendall(b"a" * MIB)
        return client.recv(100)


@contextmanager
def crowd(server: LiveServer) -> Iterator[None]:
    """Connections that say nothing, and some that never come to an end of their headers."""
    with ExitStack() as opened:
        for _ in range(IDLE):
            opened.enter_context(connect(server))
        dripping = [opened.enter_context(connect(server)) for _ in range(DRIPPING)]
        over = threading.Event()

        def drip() -> None:
            for client in dripping:
                client.sendall(b"POST /tokenize HTTP/1.1\r\n")
            while not over.wait(0.1):
                for client in dripping:
                    client.sendall(b"X: y\r\n")

        with ThreadPoolExecutor(1) as thread:
            thread.submit(drip)
            try:
                yield
            finally:
                over.set()


@contextmanager
def watched(server: LiveServer) -> Iterator[list[float]]:
    """How long each answer of /live took meanwhile."""
    took: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            begun = time.monotonic()
            assert server.status("/live") == 200
            took.append(time.monotonic() - begun)

    with ThreadPoolExecutor(1) as thread:
        watching = thread.submit(watch)
        try:
            yield took
        finally:
            over.set()
        watching.result()


def test_hostile_clients_delay_nobody(tiny_models: Callable[[str], Path]) -> None:
    arguments = ("--max-model-len", "128", "--disable-log-requests")
    with live_server(tiny_models("llama"), *arguments) as server, crowd(server):
        with watched(server) as took, ThreadPoolExecutor(2) as threads:
            asked = {
                name: threads.submit(server.status, path, make()) for name, (path, _, make) in BODIES.items()
            }
            assert large_header(server).startswith(b"HTTP/1.1 431")
            assert server.status("/v1/chat/completions", as_json(**CHAT)) == 200
            told = {name: answer.result() for name, answer in asked.items()}
        assert told == {name: status for name, (_, status, _) in BODIES.items()}
        assert max(took) < PATIENCE
        assert server.status("/v1/chat/completions", as_json(**CHAT)) == 200
