"""Requests made from our own OpenAPI schema, and worse, by the thousand: none may be answered with a 500."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

import pytest
from hostile import Hostile, hostile

from live_server import LiveServer, live_server

CLIENTS = 8
CHANGING = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "HF_HUB_OFFLINE": "1"}
"""Paths of adapters may be names of the hub, which is not asked."""


LARGE = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
PARTS = [*(["--include-path", path] for path in LARGE), [f"--exclude-path={path}" for path in LARGE]]
"""Operations whose boundaries are tried in a process of their own: the client takes 6 GiB for those of each
large one, and does not give all of it back."""


def fuzz(
    server: LiveServer, folder: Path, phases: str, examples: int, seed: int = 1, only: Sequence[str] = ()
) -> int:
    """Send about so many `examples` an operation; how many requests there were. Raises AssertionError for a
    server's fault.

    only  arguments that choose operations
    """
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json"),
        # One worker: CPython 3.11 counts the depth of syntax trees for all threads together, and hypothesis
        # reads source in each ("AST constructor recursion depth mismatch").
        *("--checks", "not_a_server_error", "--max-examples", str(examples), "--workers", "1"),
        *("--phases", phases, "--mode", "all", "--seed", str(seed), "--no-color"),
        *("--request-timeout", "60", "--suppress-health-check", "all", "--generation-database", "none"),
        *only,
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


def attack(server: LiveServer, number: int) -> Counter[int]:
    """How often each status was the answer to hostile bodies. Raises AssertionError for a server's fault."""
    document = json.loads(server.get("/openapi.json")[1])

    def post(body: Hostile) -> int:
        status = server.status(*body)
        assert status < 500 or status == 503, (status, body[0], body[1][:1000])
        return status

    ahead = threading.BoundedSemaphore(2 * CLIENTS)
    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = []
        for body in hostile(document, number):
            ahead.acquire()
            answers.append(threads.submit(post, body))
            answers[-1].add_done_callback(lambda _: ahead.release())
        return Counter(answer.result() for answer in answers)


@contextmanager
def probed(server: LiveServer) -> Iterator[dict[str, float]]:
    """How long /live takes meanwhile, as a process of its own finds: filled in at the end."""
    found: dict[str, float] = {}
    command = [sys.executable, str(Path(__file__).with_name("probe.py")), server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield found
        found |= json.loads(process.communicate()[0])


def assert_nobody_was_delayed(found: dict[str, float]) -> None:
    print(f"/live, in ms: {found}")
    assert found["p99.9"] <= 200, found
    assert found["worst"] <= 1000, found


def attacked(model: Path, *arguments: str) -> AbstractContextManager[LiveServer]:
    """A server with the routes that change its adapters, too."""
    return live_server(
        model, "--max-model-len", "128", "--enable-lora", *arguments, env=CHANGING, forked=False
    )


@pytest.mark.slow
def test_some_hundred_hostile_bodies_do_no_harm(tiny_models: Callable[[str], Path]):
    with attacked(tiny_models("llama")) as server:
        statuses = attack(server, 400)
        assert statuses[200] > 0
        assert statuses[400] > 100
        assert_it_serves_on(server)


@pytest.mark.soak
def test_five_thousand_hostile_bodies_delay_nobody(tiny_models: Callable[[str], Path]):
    with attacked(tiny_models("llama"), "--disable-log-requests") as server:
        with probed(server) as found:
            print(f"\n{attack(server, 5000)}")
        assert_nobody_was_delayed(found)
        assert_it_serves_on(server)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phases", "only"),
    [("examples,fuzzing", []), *(("coverage", part) for part in PARTS)],
    ids=["examples", *LARGE, "others"],
)
def test_some_hundred_generated_requests_do_no_harm(
    tiny_models: Callable[[str], Path], tmp_path: Path, phases: str, only: list[str]
):
    """Coverage is every boundary of every field, which takes minutes."""
    with attacked(tiny_models("llama")) as server:
        assert fuzz(server, tmp_path, phases, 5, only=only) > 100
        assert_it_serves_on(server)


@pytest.mark.soak
def test_twenty_thousand_generated_requests_delay_nobody(tiny_models: Callable[[str], Path], tmp_path: Path):
    wanted = int(os.environ.get("FUZZ_REQUESTS", "20000"))
    with attacked(tiny_models("llama"), "--disable-log-requests") as server:
        with probed(server) as found:
            sent = sum(fuzz(server, tmp_path, "examples,coverage", 1, only=part) for part in PARTS)
            seeds = count(1)
            while sent < wanted:
                sent += fuzz(server, tmp_path, "fuzzing", 300, next(seeds))
        print(f"\n{sent} requests")
        assert_nobody_was_delayed(found)
        assert_it_serves_on(server)
