"""Twenty streams without a pause through the ClusterIP, while everything below them is changed or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from e2e.ground.patience import at_most, scaled
from e2e.installation import Installation, pods_of
from e2e.load import Request, read
from e2e.operators import Namespace, Object, service, until

CLIENTS = 20
SATURATING = 80
"""Of whom 62 have a seat in the two servers."""
MINE = ("-l", "app.kubernetes.io/instance=demo")
PATIENCE = 240.0
RECOVERY = 5.0
"""Seconds after a server's death from which on no request may fail."""


class Streams:
    """The clients, as a process in the ground's network, and what became of their requests."""

    def __init__(self, namespace: Namespace, folder: Path, clients: int = CLIENTS) -> None:
        address = namespace.the("service", "demo")["spec"]["clusterIP"]
        self._told = folder / "requests.jsonl"
        self._complaints = folder / "load.log"
        with self._told.open("w") as told, self._complaints.open("w") as complaints:
            self._process = namespace.plane.popen(
                *(sys.executable, "-m", "e2e.load", f"http://{address}:8000", "demo", str(clients)),
                stdin=subprocess.PIPE, stdout=told, stderr=complaints, start_new_session=True,
            )  # fmt: skip

    def requests(self) -> list[Request]:
        assert self._process.poll() in (None, 0), self._complaints.read_text()
        return [
            read(line) for line in self._told.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]

    def flowing(self, since: float) -> bool:
        """Whether each client has had an answer that began after this moment: all connections were used."""
        return sum(1 for request in self.requests() if request.began > since) >= 2 * CLIENTS

    def wait_flowing(self) -> None:
        since = time.time()
        until(lambda: self.flowing(since), "the streams flow", PATIENCE)

    def finish(self) -> list[Request]:
        """Let the streams under way end; all requests."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(scaled(PATIENCE)) == 0, self._complaints.read_text()
        return self.requests()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[Namespace]:
    """With a service of two ready replicas."""
    made = installation.namespace("streams")
    made.apply(demo(32))
    made.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready", at_most(PATIENCE))
    yield made
    installation.remove(made)


@pytest.fixture
def streams(namespace: Namespace, tmp_path: Path) -> Iterator[Streams]:
    running = Streams(namespace, tmp_path)
    try:
        running.wait_flowing()
        yield running
    finally:
        running.kill()


def demo(seats: int) -> Object:
    model = {"reference": "slipway/demo-model:0.1.0", "path": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    return service(
        model={"image": model, "servedNames": ["demo"]},
        engine={"maxModelLen": 1024, "maxNumSeqs": seats},
        env=[{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"}],
        resources={"memory": "2Gi"},
        replicas=2,
    )


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


def settled(namespace: Namespace, gone: Sequence[str]) -> bool:
    """Whether two ready pods serve, and none of these."""
    living = namespace.all("pods", *MINE)
    names = {pod["metadata"]["name"] for pod in living}
    return len(living) == 2 and all(map(is_ready, living)) and not names & set(gone)


def wait_settled(namespace: Namespace, gone: Sequence[str]) -> None:
    until(lambda: settled(namespace, gone), lambda: namespace.kubectl("get", "pods", "-o", "wide"), PATIENCE)


def names(found: Sequence[Object]) -> list[str]:
    return [pod["metadata"]["name"] for pod in found]


def processes(pod: Object, command: str) -> list[int]:
    """Process ids of the machine that run in this pod and whose command line has this word."""
    uid, outside, found = pod["metadata"]["uid"], os.readlink("/proc/self/ns/pid"), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # The pod's volumes are mounted outside too, where everyone sees them.
            inside = (
                os.readlink(folder / "ns" / "pid") != outside and uid in (folder / "mountinfo").read_text()
            )
            if inside and command in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def readiness(found: Sequence[Object]) -> dict[str, str]:
    """Since when each of these pods is ready."""
    return {
        pod["metadata"]["name"]: one["lastTransitionTime"]
        for pod in found
        for one in pod["status"]["conditions"]
        if (one["type"], one["status"]) == ("Ready", "True")
    }


def evict(namespace: Namespace, pod: str) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    namespace.kubectl("create", f"--raw={path}", "-f", "-", input=json.dumps(eviction))


@pytest.mark.product
def test_rollouts_a_killed_operator_a_deleted_pod_and_an_eviction_cut_no_stream(
    streams: Streams, namespace: Namespace, installation: Installation
) -> None:
    old = names(pods_of(namespace, "demo"))
    namespace.apply(demo(31))
    wait_settled(namespace, old)
    streams.wait_flowing()

    old = names(pods_of(namespace, "demo"))
    namespace.apply(demo(30))
    until(lambda: {*names(namespace.all("pods", *MINE))} - {*old}, "the rollout is under way", PATIENCE)
    (operator,) = processes(installation.pod(), "slipway_operator")
    os.kill(operator, signal.SIGKILL)
    wait_settled(namespace, old)
    streams.wait_flowing()

    deleted = names(pods_of(namespace, "demo"))[0]
    namespace.kubectl("delete", "pod", deleted, "--wait=false")
    wait_settled(namespace, [deleted])
    streams.wait_flowing()

    evicted = names(pods_of(namespace, "demo"))[0]
    evict(namespace, evicted)
    wait_settled(namespace, [evicted])
    streams.wait_flowing()

    restarts = installation.pod()["status"]["containerStatuses"][0]["restartCount"]
    assert restarts == 1
    namespace.kubectl("wait", "inferenceservices/demo", "--for=condition=Ready", at_most(120))
    requests = streams.finish()
    assert [request for request in requests if not request.whole] == []
    print(f"{len(requests)} streams, none failed or cut, through five changes")


def test_servers_with_more_requests_than_seats_stay_ready(namespace: Namespace, tmp_path: Path) -> None:
    """What is only busy stays in its Service: the others would be next."""
    wait_settled(namespace, [])
    before = readiness(pods_of(namespace, "demo"))
    crowd = Streams(namespace, tmp_path, clients=SATURATING)
    try:
        until(lambda: len(crowd.requests()) >= SATURATING, "as many answers as clients", PATIENCE)
    finally:
        crowd.kill()
    assert readiness(pods_of(namespace, "demo")) == before
    assert len(before) == 2


def test_a_killed_server_cuts_the_streams_that_it_held_and_none_of_them_looks_whole(
    streams: Streams, namespace: Namespace
) -> None:
    wait_settled(namespace, [])
    victim, other = pods_of(namespace, "demo")
    servers = processes(victim, "slipway")
    assert servers
    for server in servers:
        os.kill(server, signal.SIGKILL)
    killed = time.time()
    streams.wait_flowing()
    wait_settled(namespace, [])
    streams.wait_flowing()
    requests = streams.finish()
    broken = [request for request in requests if not request.whole]
    assert broken, "nothing was cut: the server that was killed held no stream"
    assert [request for request in broken if request.looks_whole] == []
    assert [request for request in broken if request.began > killed + RECOVERY] == []
    logs = namespace.kubectl("logs", other["metadata"]["name"], "--tail=-1")
    assert [request for request in broken if request.received and request.id in logs] == []
    print(f"{len(requests)} streams, {len(broken)} cut or refused by the death of their server")
