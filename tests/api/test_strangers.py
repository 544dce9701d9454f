"""Strangers on each port between hosts: they are refused and logged, and the server serves on."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port

from live_server import live_server, serve
from served_hosts import answers, long
from slipway.dist.channel import SocketChannel
from slipway.dist.stages import Doorway, reach
from slipway.engine.config import EngineConfig
from strangers import refused_all

pytestmark = pytest.mark.slow

TinyModels = Callable[[str], Path]
HERE = "127.0.0.1"


def test_strangers_where_engines_of_other_nodes_come(tiny_models: TinyModels, cluster_key: Path) -> None:
    model, port = str(tiny_models("llama")), free_port()
    common = [
        *long(),
        "-dp",
        "2",
        "-dpl",
        "1",
        "-dpa",
        HERE,
        "-dpp",
        str(port),
        "--cluster-key-file",
        str(cluster_key),
    ]
    node = (model, *common, "--headless", "-dpr", "1")
    with live_server(model, *common, ready=False) as server:
        server.wait_until_said(f"listening on {HERE}, port {port}")

        def said() -> str:
            return "".join(server.lines)

        refused_all((HERE, port), cluster_key.read_bytes(), said)
        with serve(*node, stderr=subprocess.DEVNULL) as process:
            try:
                server.wait_until("/ready", 200)
                before = answers(server.url)
                refused_all((HERE, port), cluster_key.read_bytes(), said)
                assert answers(server.url) == before
            finally:
                server.process.send_signal(signal.SIGINT)
                process.wait(scaled(30))


def test_strangers_where_ranks_report(tiny_models: TinyModels, cluster_key: Path) -> None:
    model, port = str(tiny_models("llama")), free_port()
    ranks = (
        "--pipeline-parallel-size",
        "2",
        "--nnodes",
        "2",
        "--master-addr",
        HERE,
        "--master-port",
        str(port),
    )
    common = [*long(), *ranks, "--cluster-key-file", str(cluster_key)]
    node = (model, *common, "--node-rank", "1")
    with live_server(model, *common, ready=False) as server:
        server.wait_until_said(f"listening on {HERE}, port {port}")
        refused_all((HERE, port), cluster_key.read_bytes(), lambda: "".join(server.lines))
        with serve(*node, stderr=subprocess.DEVNULL) as process:
            try:
                server.wait_until("/ready", 200)
                assert answers(server.url)
            finally:
                server.process.send_signal(signal.SIGINT)
                process.wait(scaled(30))


def test_strangers_where_a_stage_awaits_the_next(cluster_key: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    first = EngineConfig(
        model="m",
        pipeline_parallel_size=2,
        nnodes=2,
        master_addr=HERE,
        rank_port=port - 1,
        cluster_key_file=str(cluster_key),
    )
    doorway = Doorway(first, cluster_key.read_bytes())
    refused_all((HERE, port), cluster_key.read_bytes(), lambda: caplog.text)
    second = msgspec.structs.replace(first, rank=1, node_rank=1)
    ends: list[SocketChannel] = [reach(second, cluster_key.read_bytes(), HERE), doorway.wait()]
    for end in ends:
        end.close()
