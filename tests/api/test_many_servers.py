"""Several API processes in front of one engine: what they share, and what one of them takes with it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.ground.patience import scaled
from test_http import certificate

from live_server import LiveServer, live_server
from process_tree import children
from slipway import exits

pytestmark = pytest.mark.slow

TWO = (
    "--served-model-name",
    "it",
    "--max-model-len",
    "512",
    "--api-server-count",
    "2",
    "--enable-log-requests",
)
SHORT: dict[str, Any] = {"model": "it", "prompt": "a", "max_tokens": 3, "ignore_eos": True}
LONG = SHORT | {"max_tokens": 100, "stream": True}
NUM_STREAMS = 12
"""The demo model takes seconds for them."""


@pytest.fixture
def tiny(tiny_models: Callable[[str], Path]) -> Path:
    return tiny_models("llama")


def alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], Any], what: str, patience: float = 30) -> None:
    end = time.monotonic() + scaled(patience)
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def api_process(server: LiveServer, index: int) -> int:
    """The latest that has this index."""
    said = re.findall(rf"\[api {index}\] .*Started server process \[(\d+)\]", "".join(server.lines))
    return int(said[-1])


def server_of(server: LiveServer, request: str) -> int:
    """The index of the process whose log has this request."""
    found = re.search(rf"\[api (\d)\] .*request {request}:", server.wait_until_said(f"request {request}:"))
    assert found is not None
    return int(found[1])


@dataclass
class Stream:
    """One that has begun, over a connection of its own."""

    lines: Iterator[str]
    request: str
    index: int = -1
    """Of the process that serves it."""

    def rest(self) -> str:
        return "\n".join(self.lines)


def open_stream(client: httpx.Client) -> Stream:
    answer = client.send(client.build_request("POST", "/v1/completions", json=LONG), stream=True)
    lines = answer.iter_lines()
    return Stream(lines, json.loads(next(lines).removeprefix("data: "))["id"])


class Streams:
    """Many that have begun, half of them in each process. The engine stands still until it is to `go_on`."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._clients = [
            httpx.Client(base_url=server.url, trust_env=False, timeout=scaled(60)) for _ in range(NUM_STREAMS)
        ]

    def __enter__(self) -> Streams:
        half = NUM_STREAMS // 2
        self.all = self._opened_in(0, self._clients[:half]) + self._opened_in(1, self._clients[half:])
        os.kill(self._server.engine_pid(), signal.SIGSTOP)
        for stream in self.all:
            stream.index = server_of(self._server, stream.request)
        assert [stream.index for stream in self.all] == [0] * half + [1] * half
        return self

    def _opened_in(self, index: int, clients: list[httpx.Client]) -> list[Stream]:
        """While the other process stands still: else one that no core is free for takes none."""
        other = api_process(self._server, 1 - index)
        os.kill(other, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(len(clients)) as pool:
                return list(pool.map(open_stream, clients))
        finally:
            os.kill(other, signal.SIGCONT)

    def go_on(self) -> None:
        os.kill(self._server.engine_pid(), signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()


def whole(text: str) -> bool:
    return '"finish_reason":"length"' in text and text.rstrip().endswith("[DONE]")


def ask(server: LiveServer, number: int = 1, path: str = "/v1/completions") -> list[httpx.Response]:
    """As many connections at once, with a request each."""
    with ThreadPoolExecutor(number) as pool:
        send = (
            (lambda _: httpx.post(server.url + path, json=SHORT, timeout=scaled(60), trust_env=False))
            if path.startswith("/v1/")
            else (lambda _: httpx.get(server.url + path, timeout=scaled(60), trust_env=False))
        )
        return list(pool.map(send, range(number)))


def test_connections_that_come_at_once_are_shared_by_all_processes(tiny: Path) -> None:
    """But by one that no core is free for, which may be so for a moment."""
    with live_server(tiny, *TWO) as server:

        def shared() -> bool:
            begin = len(server.lines)
            clients = [httpx.Client(base_url=server.url, trust_env=False) for _ in range(64)]
            with ThreadPoolExecutor(64) as pool:
                statuses = {answer.status_code for answer in pool.map(lambda c: c.get("/version"), clients)}
            assert statuses == {200}
            said = lambda: "".join(server.lines[begin:])  # noqa: E731
            wait_until(lambda: said().count("GET /version") == 64, "64 requests in the log")
            for client in clients:
                client.close()
            served = Counter(re.findall(r"\[api (\d)\].*GET /version", said()))
            return sorted(served) == ["0", "1"] and min(served.values()) >= 16

        wait_until(shared, "a share for each process")


def test_a_killed_process_takes_its_streams_alone_and_another_takes_its_place(demo_model: Path) -> None:
    with live_server(demo_model, *TWO) as server:
        assert {answer.status_code for answer in ask(server, NUM_STREAMS)} == {200}
        ended = "vllm:e2e_request_latency_seconds_count"
        wait_until(lambda: server.metrics()[ended] == NUM_STREAMS, "every process's requests in the sums")
        with Streams(server) as streams:
            before = server.metrics()
            killed = api_process(server, 0)
            os.kill(killed, signal.SIGKILL)
            server.wait_until_said("API process 0 was killed by SIGKILL")
            streams.go_on()
            for stream in streams.all:
                if stream.index == 0:
                    with pytest.raises(httpx.RemoteProtocolError):
                        stream.rest()
                else:
                    assert whole(stream.rest())
        wait_until(lambda: api_process(server, 0) != killed, "another process")
        wait_until(
            lambda: {server_of(server, answer.json()["id"]) for answer in ask(server, NUM_STREAMS)} == {0, 1},
            "the new process serves",
        )
        assert server.process.poll() is None
        after = server.metrics()
        for name, number in before.items():
            if name.endswith(("_total", "_count", "_sum", "_bucket")):
                assert after[name] >= number, name
        assert (after["vllm:num_requests_running"], after["vllm:num_requests_waiting"]) == (0, 0)


def test_a_process_that_a_signal_without_a_name_ends_is_replaced(tiny: Path) -> None:
    with live_server(tiny, *TWO) as server:
        killed = api_process(server, 0)
        os.kill(killed, 40)
        server.wait_until_said("API process 0 was killed by signal 40")
        wait_until(lambda: api_process(server, 0) != killed, "another process")


def test_a_process_killed_as_it_drains_shows_in_the_exit_status(demo_model: Path) -> None:
    with live_server(demo_model, *TWO, "--drain-grace", "1") as server:
        with Streams(server) as streams:
            killed = api_process(server, 0)
            server.process.send_signal(signal.SIGTERM)
            server.wait_until_refused()
            os.kill(killed, signal.SIGKILL)
            streams.go_on()
            assert all(whole(stream.rest()) for stream in streams.all if stream.index == 1)
        assert server.process.wait(scaled(20)) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", ["1", "2"])
def test_a_key_need_not_be_utf_8(tiny: Path, number: str) -> None:
    key = b"k\xff"
    with live_server(tiny, "--api-server-count", number, "--api-key", os.fsdecode(key)) as server:
        for given, status in ((key, 200), (b"k\xfe", 401)):
            headers = {b"Authorization": b"Bearer " + given}
            answer = httpx.get(
                f"{server.url}/v1/models", headers=headers, timeout=scaled(60), trust_env=False
            )
            assert answer.status_code == status


def test_a_killed_engine_ends_all_processes_with_one_cause(demo_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "termination"
    with live_server(demo_model, *TWO, env={"SLIPWAY_TERMINATION_LOG": str(log)}) as server:
        processes = children(server.process.pid)
        with Streams(server) as streams:
            os.kill(server.engine_pid(), signal.SIGKILL)
            for stream in streams.all:
                assert '"code":"engine_dead"' in stream.rest()
            assert server.get("/live")[0] == 503
            assert server.process.wait(scaled(5)) == exits.WORKER_KILLED.code
        assert not any(map(alive, processes))
    assert json.loads(log.read_bytes())["reason"] == "WorkerKilled"
    assert "".join(server.lines).count("slipway: The engine process was killed (SIGKILL).") == 1


def test_nothing_outlives_the_parent(tiny: Path) -> None:
    with live_server(tiny, *TWO, forked=False) as server:
        processes = children(server.process.pid)
        assert len(processes) == 3
        server.process.kill()
        wait_until(lambda: not any(map(alive, processes)), "processes that end with their parent", 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_lets_the_streams_of_all_processes_finish(demo_model: Path, number: signal.Signals) -> None:
    with live_server(demo_model, *TWO, "--drain-grace", "1") as server:
        processes = children(server.process.pid)
        with Streams(server) as streams:
            os.killpg(server.process.pid, number)  # as a terminal and systemd do: to the processes, too
            server.wait_until_refused()
            streams.go_on()
            assert all(whole(stream.rest()) for stream in streams.all)
        assert server.process.wait(scaled(20)) == 0
        assert not any(map(alive, processes))


def test_a_second_signal_ends_all_processes_at_once(tiny: Path) -> None:
    with live_server(tiny, *TWO, "--drain-grace", "600") as server:
        server.process.send_signal(signal.SIGTERM)
        wait_until(
            lambda: {answer.status_code for answer in ask(server, 8, "/ready")} == {503}, "all of them drain"
        )
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(scaled(10)) == 128 + signal.SIGTERM


def test_the_cap_and_the_load_are_the_servers(demo_model: Path) -> None:
    arguments = (*TWO, "--max-concurrency", str(NUM_STREAMS), "--enable-server-load-tracking")
    with live_server(demo_model, *arguments) as server:
        with Streams(server) as streams:
            assert {answer.status_code for answer in ask(server, 8)} == {429}
            assert {answer.json()["server_load"] for answer in ask(server, 8, "/load")} == {NUM_STREAMS}
            os.kill(api_process(server, 1), signal.SIGKILL)
            server.wait_until_said("API process 1 was killed")
            streams.go_on()
            assert ask(server)[0].status_code == 200
        wait_until(lambda: json.loads(server.get("/load")[1])["server_load"] == 0, "all requests ended")


def test_processes_that_keep_dying_end_the_server(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "termination"
    with live_server(tiny, *TWO, env={"SLIPWAY_TERMINATION_LOG": str(log)}) as server:
        engine, *processes = children(server.process.pid)
        for _ in range(6):
            os.kill(processes[-1], signal.SIGKILL)
            last = processes[-1]
            wait_until(lambda gone=last: not alive(gone), "it is gone")  # type: ignore[misc]
            wait_until(
                lambda known=set(processes): (
                    server.process.poll() is not None  # type: ignore[misc]
                    or set(children(server.process.pid)) - known - {engine}
                ),
                "another in its place",
            )
            if server.process.poll() is None:
                processes = [child for child in children(server.process.pid) if child != engine]
        assert server.process.wait(scaled(10)) == exits.WORKER_KILLED.code
    cause = json.loads(log.read_bytes())
    assert re.fullmatch(
        r"API process \d was killed by SIGKILL, the 6th that was lost within 60 s\.", cause["message"]
    )


def test_a_process_that_finds_the_engine_stuck_ends_the_others_too(demo_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "termination"
    env = {"SLIPWAY_TERMINATION_LOG": str(log), "VLLM_ENGINE_ITERATION_TIMEOUT_S": "2"}
    with live_server(demo_model, *TWO, env=env) as server, httpx.Client(base_url=server.url) as client:
        stream = open_stream(client)
        os.kill(server.engine_pid(), signal.SIGSTOP)  # the other process is owed nothing
        wait_until(
            lambda: {answer.status_code for answer in ask(server, 8, "/live")} == {503},
            "all of them are sick",
        )
        with pytest.raises(httpx.RemoteProtocolError):
            stream.rest()
        assert server.process.wait(scaled(20)) == exits.ENGINE_STALLED.code
    assert json.loads(log.read_bytes())["reason"] == "EngineStalled"


def test_every_process_speaks_tls(tiny: Path, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    with live_server(tiny, *TWO, "--ssl-certfile", cert, "--ssl-keyfile", key, ready=False) as server:
        server.wait_until_said("Ctrl-C ends the server.")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{server.url}/version")
        url = server.url.replace("http", "https")

        def shared() -> bool:
            clients = [httpx.Client(base_url=url, verify=False) for _ in range(NUM_STREAMS)]
            with ThreadPoolExecutor(NUM_STREAMS) as pool:
                assert {answer.status_code for answer in pool.map(lambda c: c.get("/live"), clients)} == {200}
            for client in clients:
                client.close()
            said = re.findall(r"\[api (\d)\].*GET /live", server.wait_until_said("GET /live"))
            return set(said) == {"0", "1"}

        wait_until(shared, "a share for each process")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, "needs an engine in a process of its own"),
        ({"VLLM_ENABLE_RESPONSES_API_STORE": "1"}, "has no process that every client meets again"),
    ],
    ids=["engine in process", "stored responses"],
)
def test_what_several_processes_cannot_share_is_refused(
    tiny: Path, variables: dict[str, str], words: str
) -> None:
    with live_server(tiny, *TWO, ready=False, env=variables) as server:
        assert server.process.wait(scaled(20)) == exits.BAD_ARGUMENTS.code
    assert f"--api-server-count 2 {words}" in "".join(server.lines)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["/nowhere/model"], exits.MODEL_NOT_FOUND),
        (["{tiny}", "--ssl-certfile", "/no/cert", "--ssl-keyfile", "/no/key"], exits.TLS_FILES_BAD),
        (["{tiny}", "--tokenizer", "/nowhere"], exits.BAD_TOKENIZER),
    ],
    ids=["engine", "every process", "every process while it loads"],
)
def test_a_start_that_cannot_succeed_ends_with_the_code_that_one_process_has(
    tiny: Path, tmp_path: Path, arguments: list[str], code: exits.ExitCode
) -> None:
    model, *rest = (argument.format(tiny=tiny) for argument in arguments)
    log = tmp_path / "termination"
    env = {"SLIPWAY_TERMINATION_LOG": str(log)}
    with live_server(model, *rest, "--api-server-count", "2", ready=False, env=env, forked=False) as server:
        assert server.process.wait(scaled(30)) == code.code
    assert json.loads(log.read_bytes())["code"] == code.code
    assert "".join(server.lines).count("slipway: ") == 1
