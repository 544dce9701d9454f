"""/sleep, /wake_up and /is_sleeping, and what a server that sleeps says to everyone else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from e2e.ground.patience import scaled
from serving import PLAIN, Served

from live_server import LiveServer, live_server

Models = Callable[[str], Path]
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}


@pytest.fixture
def sleeper(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    return start("--enable-sleep-mode")


def test_the_engine_is_told_the_level_and_the_parts(sleeper: Served) -> None:
    for path in (
        "/sleep",
        "/sleep?level=2",
        "/wake_up",
        "/wake_up?tags=kv_cache",
        "/wake_up?tags=kv_cache,weights",
    ):
        assert sleeper.post(path).status_code == 200
    assert sleeper.post("/wake_up?tags=weights&tags=kv_cache").content == b""
    both = ["wake_up", "weights", "kv_cache"]
    assert sleeper.engine.asked == [
        ["sleep", "1"],
        ["sleep", "2"],
        both,
        ["wake_up", "kv_cache"],
        ["wake_up", "kv_cache", "weights"],
        both,
    ]


@pytest.mark.parametrize(
    ("path", "param", "words"),
    [
        ("/sleep?level=3", "level", 'level is "3"; 1 keeps the weights, 2 drops them.'),
        ("/sleep?level=", "level", 'level is ""'),
        ("/wake_up?tags=graphs", "tags", 'tags has "graphs"; what sleeps is weights and kv_cache.'),
        ("/wake_up?tags=weights,", "tags", 'tags has ""'),
    ],
)
def test_what_no_level_and_no_part_is_is_refused(sleeper: Served, path: str, param: str, words: str) -> None:
    answer = sleeper.post(path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert words in answer.json()["error"]["message"]
    assert sleeper.engine.asked == []


def test_a_server_without_sleep_mode_says_what_is_missing(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    served = start()
    for path in ("/sleep", "/wake_up"):
        answer = served.post(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "sleep_mode_off")
        assert "--enable-sleep-mode" in answer.json()["error"]["message"]
    assert served.get("/is_sleeping").json() == {"is_sleeping": False}


def test_outside_of_development_there_are_no_such_paths(start: Callable[..., Served]) -> None:
    served = start("--enable-sleep-mode")
    assert served.post("/sleep").status_code == served.post("/wake_up").status_code == 404
    assert served.get("/is_sleeping").status_code == 404


def test_what_the_engine_cannot_do_now_is_409_and_what_fails_500(sleeper: Served) -> None:
    sleeper.engine.replies = {
        "sleep": "2 requests are live: wait.",
        "wake_up": "failed: wake up: no such folder",
    }
    refused, failed = sleeper.post("/sleep"), sleeper.post("/wake_up")
    assert (refused.status_code, refused.json()["error"]["message"]) == (409, "2 requests are live: wait.")
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "call_failed")
    assert "no such folder" in failed.json()["error"]["message"]


def test_a_request_that_meets_a_sleeping_engine_on_its_way_is_told_to_come_again(sleeper: Served) -> None:
    sleeper.engine.falls_asleep = True
    for _ in range(2):  # the engine refuses the first, the second does not get there
        answer = sleeper.post("/v1/completions", PLAIN)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"]["code"] == "asleep"
        assert sleeper.engine.num_refused == 1


@pytest.mark.slow
def test_every_process_of_a_server_sleeps_and_wakes_with_the_engine(
    tiny_models: Callable[[str], Path],
) -> None:
    arguments = ("--enable-sleep-mode", "--max-model-len", "256", "--api-server-count", "2")
    with live_server(tiny_models("llama"), *arguments, env=DEVELOPMENT) as server:
        before = answers(server, 8)
        assert {answer.status_code for answer in before} == {200}
        for level in ("1", "2"):
            assert httpx.post(f"{server.url}/sleep?level={level}", timeout=scaled(60)).status_code == 200
            server.wait_until("/ready", 503)
            for _ in range(8):  # each over a connection of its own
                status, body = server.get("/health")
                assert (status, json.loads(body)["phase"]) == (503, "asleep")
                assert (
                    server.status("/live") == server.status("/metrics") == server.status("/v1/models") == 200
                )
                assert server.get("/is_sleeping") == (200, '{"is_sleeping":true}')
            refused = answers(server, 8)
            assert {answer.json()["error"]["code"] for answer in refused} == {"asleep"}
            assert {answer.status_code for answer in refused} == {503}
            assert httpx.post(f"{server.url}/wake_up?tags=weights", timeout=scaled(60)).status_code == 200
            assert server.get("/is_sleeping") == (200, '{"is_sleeping":true}')
            assert httpx.post(f"{server.url}/wake_up?tags=kv_cache", timeout=scaled(60)).status_code == 200
            server.wait_until("/ready", 200)
            after = answers(server, 8)
            assert [one.json()["choices"] for one in after] == [one.json()["choices"] for one in before]


@pytest.mark.slow
def test_a_server_that_sleeps_drains_as_any_other(tiny_models: Models) -> None:
    with live_server(
        tiny_models("llama"), "--enable-sleep-mode", "--drain-grace", "0", env=DEVELOPMENT
    ) as server:
        assert httpx.post(f"{server.url}/sleep?level=2", timeout=scaled(60)).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(scaled(20)) == 0


@pytest.mark.slow
def test_an_api_process_that_comes_while_the_engine_sleeps_knows_it(
    tiny_models: Callable[[str], Path],
) -> None:
    arguments = ("--enable-sleep-mode", "--max-model-len", "256", "--api-server-count", "2")
    with live_server(tiny_models("llama"), *arguments, env=DEVELOPMENT) as server:
        assert httpx.post(f"{server.url}/sleep", timeout=scaled(60)).status_code == 200
        said = server.wait_until_said("[api 1]")
        victim = int(said.split("[api 1]")[1].split("Started server process [")[1].split("]")[0])
        os.kill(victim, signal.SIGKILL)
        server.wait_until_said(f"{victim}")
        server.wait(3)
        for _ in range(12):
            assert server.get("/is_sleeping") == (200, '{"is_sleeping":true}')


@pytest.mark.slow
def test_who_cannot_reach_the_paths_is_told_so_at_the_start(tiny_models: Models) -> None:
    with live_server(tiny_models("llama"), "--enable-sleep-mode") as server:
        assert "set VLLM_SERVER_DEV_MODE=1" in server.wait_until_said("Ready after")


def answers(server: LiveServer, number: int) -> list[httpx.Response]:
    body = {"prompt": "Hi", "max_tokens": 5, "temperature": 0.0}
    return [httpx.post(f"{server.url}/v1/completions", json=body, timeout=scaled(60)) for _ in range(number)]
