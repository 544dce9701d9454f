"""Ranks that Ray places on two hosts of their own: what clients see, and how all of it ends."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import openai
import pytest
from e2e.ground.patience import SLOWNESS, scaled

from live_server import live_server
from namespaces import needs_hosts
from ray_hosts import RayHosts, ray_hosts
from served_hosts import OURS, PORT, ServedHosts, answering, answers, begin_stream, begun, long

pytestmark = [pytest.mark.slow, needs_hosts]

TinyModels = Callable[[str], Path]
BY_RAY = ("--distributed-executor-backend", "ray")
RANKS = (*BY_RAY, "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")


@pytest.fixture
def cluster() -> Iterator[RayHosts]:
    """Of two processors on each of two hosts."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as place, ray_hosts(Path(place), 2) as made:
        yield made


@contextmanager
def served_by_ray(cluster: RayHosts, model: Path, *arguments: str) -> Iterator[ServedHosts]:
    """From where it answers on."""
    first = cluster.hosts[0]
    command = [str(model), *long(), *arguments]
    server = begun(first, [*command, "--host", first.address, "--port", str(PORT)], cluster.environment)
    with ExitStack() as ends:
        yield ends.enter_context(answering(ServedHosts(cluster.hosts, [server])))


@pytest.mark.parametrize("ranks", ["two by two", "four"])
def test_ranks_that_ray_places_answer_what_one_answers(
    cluster: RayHosts, tiny_models: TinyModels, ranks: str
) -> None:
    parallel = RANKS if ranks == "two by two" else (*BY_RAY, "--tensor-parallel-size", "4")
    with live_server(tiny_models("llama"), *long()) as alone:
        expected = answers(alone.url)
    with served_by_ray(cluster, tiny_models("llama"), *parallel) as served:
        assert answers(served.server.url) == expected, served.said()
        assert "There is no --cluster-key-file" not in served.said()
        served.server.process.terminate()
        assert served.server.process.wait(scaled(20)) == 0, served.said()
        assert served.left(5) == [], served.said()


def test_engines_that_ray_places_share_requests(cluster: RayHosts, tiny_models: TinyModels) -> None:
    with live_server(tiny_models("llama"), *long()) as alone:
        expected = answers(alone.url)
    copies = ("--data-parallel-backend", "ray", "--data-parallel-size", "2", "--pipeline-parallel-size", "2")
    with served_by_ray(cluster, tiny_models("llama"), *copies) as served:
        assert [answers(served.server.url) for _ in range(4)] == [expected] * 4, served.said()
        assert len(served.ranks(1)) == 2
        served.server.process.terminate()
        assert served.server.process.wait(scaled(20)) == 0, served.said()
        assert served.left(5) == [], served.said()


@pytest.mark.parametrize("lost", ["rank killed", "actor killed", "cut off"])
def test_a_node_that_is_lost_ends_streams_with_its_name_and_all_processes(
    lost: str, cluster: RayHosts, tiny_models: TinyModels
) -> None:
    far = cluster.hosts[1]
    with served_by_ray(cluster, tiny_models("llama"), *RANKS) as served:
        stream = begin_stream(served)
        begun = time.monotonic()
        if lost == "cut off":
            far.cut_off()
        else:
            wanted = "slipway.engine.rank" if lost == "rank killed" else "ray::Occupant"
            found = [pid for pid, line in far.processes().items() if wanted in line]
            assert len(found) == 2, far.processes()
            for pid in found[:1] if lost == "rank killed" else found:
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass
        assert time.monotonic() - begun < 15 * SLOWNESS
        assert re.search(rf"Rank [23].* on {far.address} ", str(caught.value)), served.said()
        # An actor that Ray cannot reach ends when Ray gives up its node.
        assert served.left(5, OURS[:1] if lost == "cut off" else OURS) == [], served.said()
        assert served.server.process.wait(scaled(1)) != 0
