"""A server of several engines: what it answers, where its requests go, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port
from test_many_servers import alive, wait_until

from fork_server import ForkedProcess
from live_server import LiveServer, live_server, serve
from process_tree import children
from slipway import exits
from slipway.dist.trust import Acceptor, Greeting, read_key
from slipway.engine.tunnel import BEATS, ENGINE

pytestmark = pytest.mark.slow

ONE = ("--served-model-name", "it", "--max-model-len", "512", "--dtype", "float32", "--block-size", "16")
TWO = (*ONE, "--data-parallel-size", "2")
NUM_STREAMS = 12


@pytest.fixture
def tiny(tiny_models: Callable[[str], Path]) -> Path:
    return tiny_models("llama")


def complete(server: LiveServer, prompt: list[int], **fields: Any) -> list[str]:
    body = {"model": "it", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=scaled(60), trust_env=False)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def at_once(server: LiveServer, prompts: list[list[int]], **fields: Any) -> list[list[str]]:
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        return list(pool.map(lambda prompt: complete(server, prompt, **fields), prompts))


def by_engine(server: LiveServer, name: str) -> dict[str, float]:
    """Values of a metric by the engine's label, summed over the others."""
    found: dict[str, float] = {}
    for engine, value in re.findall(
        rf'^{name}\{{[^}}]*engine="(\d+)"[^}}]*\}} (\S+)$', server.get("/metrics")[1], re.MULTILINE
    ):
        found[engine] = found.get(engine, 0.0) + float(value)
    return found


def engines_of(server: LiveServer) -> list[int]:
    """The processes of the engines, in the order of their ranks."""
    return [
        child
        for child in children(server.process.pid)
        if b"slipway.engine" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def of(number: int, length: int = 40) -> list[int]:
    """A prompt that shares no block with another's."""
    return [3 + (number * 31 + place * 7) % 250 for place in range(length)]


def test_two_engines_answer_as_one_does_whatever_runs_beside(tiny: Path) -> None:
    prompts = [of(number) for number in range(NUM_STREAMS)]
    with live_server(tiny, *ONE) as server:
        alone = [complete(server, prompt) for prompt in prompts]
        assert by_engine(server, "vllm:request_success_total") == {"0": NUM_STREAMS}
    with live_server(tiny, *TWO, "--api-server-count", "2", forked=False) as server:
        assert at_once(server, prompts) == alone
        name = "vllm:request_success_total"
        wait_until(lambda: sum(by_engine(server, name).values()) == NUM_STREAMS, "all requests in the sums")
        assert min(by_engine(server, name).values()) >= 1
        name = "vllm:generation_tokens_total"
        wait_until(lambda: sum(by_engine(server, name).values()) == 8 * NUM_STREAMS, "all tokens in the sums")
        assert by_engine(server, name).keys() == {"0", "1"}


def test_engines_of_several_ranks_each_answer_as_one_does(tiny: Path) -> None:
    prompts = [of(number) for number in range(4)]
    with live_server(tiny, *ONE) as server:
        alone = [complete(server, prompt) for prompt in prompts]
    with live_server(tiny, *TWO, "--tensor-parallel-size", "2") as server:
        assert at_once(server, prompts) == alone
        assert min(by_engine(server, "vllm:request_success_total").values()) >= 1


def test_each_prefix_is_missed_once_by_an_engine_at_most(tiny: Path) -> None:
    """16 requests of each of four prefixes of 10 blocks: the rest of each prompt is less than a block."""
    prefixes = [of(number, 160) for number in range(4)]
    with live_server(tiny, *TWO) as server:
        prompts = [[*prefix, 5 + number] for number in range(16) for prefix in prefixes]
        at_once(server, prompts)
        queries, hits = (
            sum(by_engine(server, f"vllm:gpu_prefix_cache_{what}_total").values())
            for what in ("queries", "hits")
        )
        assert queries == 161 * len(prompts)
        misses = (160 * len(prompts) - hits) / 160
        assert len(prefixes) <= misses <= 2 * len(prefixes)
        assert min(by_engine(server, "vllm:request_success_total").values()) > 0


def test_answers_to_one_prompt_are_found_where_it_was_computed(tiny: Path) -> None:
    with live_server(tiny, *TWO) as server:
        assert len(complete(server, of(1, 161), n=4)) == 4
        assert sorted(by_engine(server, "vllm:request_success_total").values()) == [0, 4]
        assert sum(by_engine(server, "vllm:gpu_prefix_cache_hits_total").values()) == 3 * 160
        complete(server, of(1, 161), n=2, use_beam_search=True, max_tokens=4)
        assert sorted(by_engine(server, "vllm:request_success_total").values()) == [0, 6]


def test_one_engine_that_is_killed_ends_the_server_with_its_name(demo_model: Path) -> None:
    with live_server(demo_model, *TWO) as server, httpx.Client(trust_env=False, timeout=scaled(60)) as client:
        first, second = engines_of(server)
        body = {"model": "it", "max_tokens": 400, "ignore_eos": True, "stream": True}
        streams = []
        for number in range(4):
            asked = body | {"prompt": of(number)}
            request = client.build_request("POST", f"{server.url}/v1/completions", json=asked)
            streams.append(client.send(request, stream=True).iter_lines())
            assert '"text"' in next(streams[-1])
        assert by_engine(server, "vllm:num_requests_running") == {"0": 2, "1": 2}
        os.kill(second, signal.SIGKILL)
        for lines in streams:
            *_, last = (line for line in lines if line.startswith("data: ") and "[DONE]" not in line)
            error = json.loads(last.removeprefix("data: "))["error"]
            assert error["code"] == "engine_dead"
            assert "The process of engine 1 of 2 was killed (SIGKILL)." in error["message"]
        assert server.process.wait(scaled(10)) == exits.WORKER_KILLED.code
        assert not alive(first)
    assert "The process of engine 1 of 2 was killed" in "".join(server.lines)


def test_a_start_that_fails_names_the_engine_and_leaves_no_process(tiny: Path) -> None:
    with live_server(tiny, *TWO, "--num-gpu-blocks-override", "2", ready=False) as server:
        assert server.process.wait(scaled(60)) == exits.KV_CACHE_TOO_SMALL.code
    assert re.search(r"Engine [01] of 2: the KV cache of", "".join(server.lines))


def test_the_parent_takes_all_engines_with_it(tiny: Path) -> None:
    with live_server(tiny, *TWO) as server:
        engines = engines_of(server)
        assert len(engines) == 2
        server.process.kill()
        wait_until(lambda: not any(map(alive, engines)), "no engine outlives its parent")


def test_a_server_behind_a_balancer_runs_its_own_rank_and_says_so(tiny: Path) -> None:
    with live_server(tiny, *TWO, "--data-parallel-rank", "1") as server:
        assert len(engines_of(server)) == 1
        complete(server, of(1))
        complete(server, of(1), use_beam_search=True, n=2)
        assert by_engine(server, "vllm:request_success_total") == {"1": 3}


def test_a_node_of_many_balances_among_its_own(tiny: Path) -> None:
    nodes = (
        "--data-parallel-size",
        "4",
        "--data-parallel-size-local",
        "2",
        "--data-parallel-start-rank",
        "2",
    )
    with live_server(tiny, *ONE, *nodes, "--data-parallel-hybrid-lb") as server:
        at_once(server, [of(number) for number in range(4)])
        ended = by_engine(server, "vllm:request_success_total")
        assert ended.keys() == {"2", "3"}
        assert sum(ended.values()) == 4
        assert min(ended.values()) >= 1
        assert len(engines_of(server)) == 2


def test_engines_share_the_machine(tiny: Path) -> None:
    sizes = []
    for arguments in (ONE, TWO):
        with live_server(tiny, *arguments, env={"VLLM_SERVER_DEV_MODE": "1"}) as server:
            sizes.append(json.loads(server.get("/server_info")[1])["engine"]["num_blocks"])
    assert 0 < sizes[1] <= sizes[0]


def meeting_at(port: int, key: Path) -> list[str]:
    return ["-dpl", "1", "-dpa", "127.0.0.1", "-dpp", str(port), "--cluster-key-file", str(key)]


SECOND = ("-dpr", "1", "--headless")


@contextlib.contextmanager
def further_node(model: Path, *arguments: str, which: Sequence[str] = SECOND) -> Iterator[ForkedProcess]:
    with serve(str(model), *TWO, *arguments, *which, stderr=subprocess.PIPE) as node:
        try:
            yield node
        finally:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)


PLACES: dict[str, tuple[tuple[str, str], Sequence[str], Sequence[str]]] = {
    "a copy on each": (("-dpa", "-dpp"), ("-dpl", "1"), ("-dpl", "1", *SECOND)),
    "several processes of the API": (
        ("-dpa", "-dpp"),
        ("-dpl", "1", "--api-server-count", "2"),
        ("-dpl", "1", *SECOND),
    ),
    "no copy at the head": (("-dpa", "-dpp"), ("-dpl", "0"), ("-dpl", "2", "--headless")),
    "as the nodes say": (("--master-addr", "--master-port"), ("-n", "2"), ("-n", "2", "-r", "1")),
}
"""How they are told where they meet, what the head is told, and what the other node."""


@pytest.mark.parametrize("places", PLACES)
def test_engines_of_another_node_serve_under_the_head_s_api(
    places: str, tiny: Path, cluster_key: Path
) -> None:
    (address, port), head, other = PLACES[places]
    common = (address, "127.0.0.1", port, str(free_port()), "--cluster-key-file", str(cluster_key))
    with (
        live_server(tiny, *TWO, *common, *head, ready=False) as server,
        further_node(tiny, *common, which=other) as node,
    ):
        server.wait_until("/ready", 200)
        prompts = [of(number) for number in range(NUM_STREAMS)]
        answers = at_once(server, prompts)
        assert answers == [complete(server, prompt) for prompt in prompts]
        wait_until(
            lambda: sum(by_engine(server, "vllm:request_success_total").values()) == 2 * NUM_STREAMS, "sums"
        )
        assert min(by_engine(server, "vllm:request_success_total").values()) >= 1
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(scaled(20)) == 0
        assert node.wait(scaled(20)) == 0


def test_a_node_that_is_killed_ends_the_server_and_is_named(tiny: Path, cluster_key: Path) -> None:
    meeting = meeting_at(free_port(), cluster_key)
    with live_server(tiny, *TWO, *meeting, ready=False) as server, further_node(tiny, *meeting) as node:
        server.wait_until("/ready", 200)
        os.killpg(node.pid, signal.SIGKILL)
        assert server.process.wait(scaled(20)) == exits.ENGINE_DIED.code
    assert "Engine 1 of 2 on 127.0.0.1 hung up; the log there may say why." in "".join(server.lines)


def test_what_an_engine_of_another_node_says_at_its_end_is_the_cause(tiny: Path, cluster_key: Path) -> None:
    meeting = meeting_at(free_port(), cluster_key)
    with (
        live_server(tiny, *TWO, *meeting, ready=False) as server,
        further_node(tiny, *meeting, "--num-gpu-blocks-override", "2") as node,
    ):
        assert server.process.wait(scaled(60)) == exits.KV_CACHE_TOO_SMALL.code
        assert node.wait(scaled(20)) == exits.KV_CACHE_TOO_SMALL.code
    assert "Engine 1 of 2: the KV cache of" in "".join(server.lines)


def test_a_node_ends_with_the_head_and_a_stranger_never_joins(
    tiny: Path, cluster_key: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("o" * 64)
    meeting = meeting_at(free_port(), cluster_key)
    with live_server(tiny, *TWO, *meeting, ready=False) as server:
        with further_node(tiny, *meeting[:-1], str(other)) as stranger:
            assert stranger.wait(scaled(60)) == exits.BAD_ARGUMENTS.code
            assert stranger.stderr is not None
            assert "does not take this node" in stranger.stderr.read()
        with further_node(tiny, *meeting) as node:
            server.wait_until("/ready", 200)
            server.process.kill()
            assert node.wait(scaled(20)) == 0
    assert "refused 127.0.0.1" in "".join(server.lines)


def proven(listener: socket.socket, key: bytes) -> tuple[socket.socket, Acceptor, Greeting]:
    """The next caller, who waits for the answer."""
    connection, _ = listener.accept()
    acceptor = Acceptor(key)
    turn = acceptor.proven(connection)
    wanted = next(turn)
    try:
        while True:
            wanted = turn.send(connection.recv(wanted, socket.MSG_WAITALL))
    except StopIteration as ended:
        return connection, acceptor, ended.value


def test_a_head_that_hangs_up_on_a_node_that_it_has_taken_is_called_again(
    tiny: Path, cluster_key: Path
) -> None:
    """As one does that ends just then: it holds no other key."""
    port, key = free_port(), read_key(str(cluster_key))
    with (
        socket.create_server(("127.0.0.1", port)) as head,
        further_node(tiny, *meeting_at(port, cluster_key)) as node,
    ):
        head.settimeout(scaled(60))
        beats, acceptor, greeting = proven(head, key)
        with beats:
            assert greeting.purpose == BEATS
            acceptor.answer(beats, greeting)
            for _ in range(3):
                connection, _, greeting = proven(head, key)
                connection.close()
                assert greeting.purpose == ENGINE
        assert node.wait(scaled(20)) == 0


def test_a_node_that_stands_still_is_found_by_its_silence(tiny: Path, cluster_key: Path) -> None:
    meeting = meeting_at(free_port(), cluster_key)
    with live_server(tiny, *TWO, *meeting, ready=False) as server, further_node(tiny, *meeting) as node:
        server.wait_until("/ready", 200)
        os.killpg(node.pid, signal.SIGSTOP)
        assert server.process.wait(scaled(25)) == exits.ENGINE_DIED.code
        os.killpg(node.pid, signal.SIGCONT)
        assert node.wait(scaled(20)) == 0
    assert re.search(r"Engine 1 of 2 on 127.0.0.1 was not heard for 1\d s\.", "".join(server.lines))
