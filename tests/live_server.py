"""A real server in a process of its own, ended by its process id whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e.ground.patience import scaled
from e2e.ground.ports import free_port

from fork_server import ForkedProcess, Spares
from process_tree import children


@dataclass
class LiveServer:
    """Where it listens, and what it printed so far."""

    url: str
    process: subprocess.Popen[str] | ForkedProcess
    lines: list[str] = field(default_factory=list)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=scaled(30)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path: str, body: bytes) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=scaled(60)) as answer:
            return answer.status, answer.read().decode()

    def status(self, path: str, body: bytes | None = None) -> int:
        """Of the answer to a GET, or of a POST's; the rest of it is not read."""
        client = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=scaled(60))
        try:
            client.request(
                "GET" if body is None else "POST", path, body, {"Content-Type": "application/json"}
            )
            return client.getresponse().status
        finally:
            client.close()

    def metrics(self) -> dict[str, float]:
        """Samples by name, the labels left out and summed."""
        values: dict[str, float] = {}
        for line in self.get("/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                values[name] = values.get(name, 0.0) + float(value)
        return values

    def wait(self, seconds: float) -> None:
        """Let it work, or see it end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def engine_pid(self) -> int:
        return children(self.process.pid)[0]

    def wait_for_engine(self, patience: float = 60) -> int:
        """The engine's process as soon as it runs the engine, long before that can answer."""
        end = time.monotonic() + scaled(patience)
        while time.monotonic() < end:
            with contextlib.suppress(IndexError, OSError):
                engine = self.engine_pid()
                if b"slipway.engine" in Path(f"/proc/{engine}/cmdline").read_bytes():
                    return engine
            self.wait(0.005)
        raise AssertionError("no engine was started:\n" + "".join(self.lines))

    def wait_until(self, path: str, status: int, patience: float = 60) -> str:
        """Ask until the path answers with this status. Raises AssertionError with the log otherwise."""
        end = time.monotonic() + scaled(patience)
        answer: tuple[int, str] | None = None
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                answer = self.get(path)
                if answer[0] == status:
                    return answer[1]
            self.wait(0.05)
        raise AssertionError(f"{path} answered {answer}, not {status}:\n" + "".join(self.lines[-50:]))

    def wait_until_said(self, words: str, patience: float = 60) -> str:
        """All that it printed, once that has these words. Raises AssertionError where it never has."""
        end = time.monotonic() + scaled(patience)
        while words not in (printed := "".join(self.lines)):
            assert time.monotonic() < end, f"{words!r} was not said:\n{printed}"
            self.wait(0.02)
        return printed

    def wait_until_refused(self, patience: float = 60) -> None:
        """Ask until no connection is taken any more."""
        end = time.monotonic() + scaled(patience)
        while time.monotonic() < end:
            try:
                self.get("/health")
            except OSError:
                return
            self.wait(0.02)
        raise AssertionError("connections are still taken:\n" + "".join(self.lines[-50:]))


@contextlib.contextmanager
def live_server(
    model: Path | str,
    *arguments: str,
    ready: bool = True,
    env: dict[str, str] | None = None,
    forked: bool = True,
) -> Iterator[LiveServer]:
    """`slipway serve` on a free port of loopback; with `ready`, once it admits requests.

    `forked` from a process that has its imports: not where a test is about how a process starts, or what is
    imported.
    """
    port = free_port()
    process = serve(
        *(str(model), "--port", str(port), *arguments),
        forked=forked,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | (env or {}),
    )
    server = LiveServer(f"http://127.0.0.1:{port}", process)
    reader = threading.Thread(target=lambda: server.lines.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        if ready:
            server.wait_until("/ready", 200)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(scaled(10))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.join(scaled(5))
        process.close()


def serve(*arguments: str, forked: bool = True, **options: Any) -> ForkedProcess:
    """`slipway serve`, as `live_server` starts it; the options are those of `ForkedProcess`."""
    spares = started_by(arguments) if forked else None
    return ForkedProcess(("slipway", "serve", *arguments), spares=spares, **options)


def started_by(arguments: Sequence[str]) -> Spares:
    """The processes that such a server starts: engines with their ranks, then those of the API."""

    def number(*names: str, default: int = 1) -> int:
        return next((int(value) for name, value in pairwise(arguments) if name in names), default)

    if "--disable-frontend-multiprocessing" in arguments:
        return []
    ranks = number("--tensor-parallel-size", "-tp") * number("--pipeline-parallel-size", "-pp")
    ranks //= min(ranks, number("--nnodes", "-n"))
    copies = number("--data-parallel-size", "-dp")
    if number("--node-rank", "-r", default=0) and copies == 1:
        return [[] for _ in range(ranks)]
    engine: Spares = [[] for _ in range(1, ranks)]
    here = number("--data-parallel-size-local", "-dpl", default=copies)
    api = number("--api-server-count")
    return [engine] * here + [[]] * (api if api > 1 else 0)
