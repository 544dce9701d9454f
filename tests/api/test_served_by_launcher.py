"""Ranks that torchrun starts: each is the same command, and the first serves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port, free_ports

from live_server import LiveServer, live_server
from served_hosts import answers, long

pytestmark = pytest.mark.slow

TinyModels = Callable[[str], Path]


@contextlib.contextmanager
def launched(processes: int, *arguments: str) -> Iterator[LiveServer]:
    """The launcher, as soon as it has begun."""
    port = free_port()
    options = (f"--nproc-per-node={processes}", f"--master-port={free_ports(2)}")  # ours is the one behind
    torchrun = ("-m", "torch.distributed.run", *options)
    serve = ("-m", "slipway", "serve", *arguments, "--distributed-executor-backend", "external_launcher")
    process = subprocess.Popen(
        [sys.executable, *torchrun, *serve, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    server = LiveServer(f"http://127.0.0.1:{port}", process)
    threading.Thread(target=lambda: server.lines.extend(process.stdout or ()), daemon=True).start()
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_ranks_of_a_launcher_answer_what_one_answers(tiny_models: TinyModels) -> None:
    model = str(tiny_models("llama"))
    with live_server(model, *long()) as alone:
        expected = answers(alone.url)
    ranks = ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")
    with launched(4, model, *long(), *ranks) as server:
        server.wait_until("/health", 200)
        assert answers(server.url) == expected
        server.process.terminate()
        server.process.wait(scaled(30))
        server.wait_until_refused()


def test_a_launcher_starts_as_many_as_there_are_ranks(tiny_models: TinyModels) -> None:
    with launched(2, str(tiny_models("llama")), "--pipeline-parallel-size", "3") as server:
        assert server.process.wait(scaled(60)) != 0
        server.wait_until_said("The launcher started WORLD_SIZE=2 processes", 10)
        assert "--pipeline-parallel-size 3 asks for 3. Start as many." in "".join(server.lines)
