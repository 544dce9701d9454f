"""Requests made from our own OpenAPI schema, thousands of them: none may be answered with a 500."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from live_server import LiveServer, live_server


def fuzz(server: LiveServer, examples: int, folder: Path) -> int:
    """Send `examples` requests an operation; how many there were. Raises AssertionError for a failure."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json"),
        # One worker: CPython 3.11 counts the depth of syntax trees for all threads together, and hypothesis
        # reads source in each ("AST constructor recursion depth mismatch").
        *("--checks", "not_a_server_error", "--max-examples", str(examples), "--workers", "1"),
        *("--phases", "examples,coverage,fuzzing", "--mode", "all", "--seed", "1", "--no-color"),
        *("--request-timeout", "60", "--suppress-health-check", "all", "--generation-database", "none"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) generated", done.stdout)
    assert counted, done.stdout[-2000:]
    return int(counted[1])


def assert_it_serves_on(server: LiveServer) -> None:
    assert server.get("/live")[0] == server.get("/ready")[0] == 200
    values = server.metrics()
    assert values["vllm:num_requests_running"] == 0
    assert values["vllm:gpu_cache_usage_perc"] == 0


@pytest.mark.slow
def test_some_hundred_generated_requests_do_no_harm(tiny_models: Callable[[str], Path], tmp_path: Path):
    with live_server(tiny_models("llama"), "--max-model-len", "128") as server:
        assert fuzz(server, 5, tmp_path) > 100
        assert_it_serves_on(server)


@pytest.mark.soak
def test_five_thousand_generated_requests_do_no_harm(tiny_models: Callable[[str], Path], tmp_path: Path):
    wanted = int(os.environ.get("FUZZ_REQUESTS", "5000"))
    with live_server(tiny_models("llama"), "--max-model-len", "128", "--disable-log-requests") as server:
        sent, examples = 0, 100
        while sent < wanted:
            sent += fuzz(server, examples, tmp_path)
            examples *= 2
        print(f"\n{sent} requests")
        assert_it_serves_on(server)
