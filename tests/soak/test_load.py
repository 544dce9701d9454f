"""Ten minutes of 64 impatient streams on the demo model, and the same in short."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from pathlib import Path

import psutil
import pytest
from streams import Crowd, Tally

from live_server import LiveServer, live_server

ARGUMENTS = ("--max-model-len", "1024", "--num-gpu-blocks-override", "1500", "--disable-log-requests")
"""A small pool: it is touched whole within the first minute, so that resident memory must stay flat."""


def resident_bytes(server: LiveServer) -> int:
    parent = psutil.Process(server.process.pid)
    return sum(process.memory_info().rss for process in [parent, *parent.children(recursive=True)])


async def watched(server: LiveServer, crowd: Crowd, early: float, late: float) -> tuple[Tally, int, int]:
    """Run the crowd; resident memory at two moments, in seconds from its start."""
    running = asyncio.create_task(crowd.run())
    await asyncio.sleep(early)
    first = resident_bytes(server)
    await asyncio.sleep(late - early)
    last = resident_bytes(server)
    return await running, first, last


def settle(server: LiveServer) -> None:
    """Wait until nothing runs, then look for leaked blocks."""
    for _ in range(600):
        values = server.metrics()
        if values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0:
            break
        server.wait(0.1)
    assert values["vllm:num_requests_running"] == 0
    assert values["vllm:gpu_cache_usage_perc"] == 0, "a block has leaked"


def assert_all_is_well(server: LiveServer, tally: Tally) -> None:
    assert tally.errors == []
    assert tally.ends["done"] > tally.ends["hung up"] > 0
    assert tally.ends["unread"] > 0
    settle(server)
    body = json.dumps({"prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(server.url + "/v1/completions", body, headers)
    ) as answer:
        assert "Paris" in json.load(answer)["choices"][0]["text"]


@pytest.mark.slow
def test_a_crowd_of_impatient_clients_leaves_nothing_behind(demo_model: Path):
    with live_server(demo_model, *ARGUMENTS, forked=False) as server:
        tally = asyncio.run(Crowd(server.url, streams=24, seconds=20).run())
        assert_all_is_well(server, tally)


@pytest.mark.soak
def test_ten_minutes_of_load_keep_memory_flat(demo_model: Path):
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    with live_server(demo_model, *ARGUMENTS, forked=False) as server:
        crowd = Crowd(server.url, streams=64, seconds=seconds)
        tally, early, late = asyncio.run(watched(server, crowd, seconds / 5, seconds * 0.98))
        print(f"\n{dict(tally.ends)}; resident {early >> 20} MiB at 1/5, {late >> 20} MiB at the end")
        assert_all_is_well(server, tally)
    assert late <= early * 1.02
