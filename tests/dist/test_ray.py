"""Ranks placed, started, watched and ended by Ray, on two hosts with addresses of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

from namespaces import Host, hosts, needs_hosts
from ray_hosts import RayHosts, ray_hosts
from slipway.dist.ray import Cluster
from slipway.exits import Exit

pytestmark = [needs_hosts, pytest.mark.slow]

SEATED = """
import json, os, sys
from slipway.dist.mesh import Mesh
from slipway.dist.placing import Share
from slipway.dist.ray import Cluster, Order, Wanted, outcome

cluster = Cluster()
seats = cluster.place(Wanted(Mesh(pp=2, tp=2), Share("CPU", 1)))
ended = {}
for rank, seat in enumerate(seats[1:], 1):
    told = json.dumps([sys.argv[1], rank]).encode()
    ended[rank] = seat.start(Order("standing_rank", told, {"SLIPWAY_CACHE": "/carried"}))
print(">", json.dumps([seat.address for seat in seats]), flush=True)
for line in sys.stdin:
    rank, patience = map(int, line.split())
    print(">", outcome(ended[rank], patience), flush=True)
cluster.close()
print("> closed", flush=True)
"""

REFUSED = """
import sys
from slipway.dist.mesh import Mesh
from slipway.dist.placing import Share
from slipway.dist.ray import Cluster, Order, Wanted
from slipway.exits import Exit

def said(act):
    try:
        print(">", act(), flush=True)
    except Exit as cause:
        print(">", cause.exit_code.reason, cause.message, flush=True)

cluster = Cluster()
said(lambda: cluster.place(Wanted(Mesh(pp=2, tp=4), Share("CPU", 1), patience=1)))
said(lambda: cluster.place(Wanted(Mesh(tp=2), Share("GPU", 0.5), patience=1)))
cluster.close()
"""

PROFILED = """
from slipway.dist.mesh import Mesh
from slipway.dist.placing import Share
from slipway.dist.ray import Cluster, Wanted

cluster = Cluster()
cluster.place(Wanted(Mesh(tp=2), Share("CPU", 1), nsight=True))
print("> placed", flush=True)
cluster.close()
"""

LOCAL = """
from slipway.dist.mesh import Mesh
from slipway.dist.placing import Share
from slipway.dist.ray import Cluster, Wanted

cluster = Cluster()
cluster.place(Wanted(Mesh(), Share("CPU", 1)))
import ray
print(">", ray.get_runtime_context().gcs_address, flush=True)
input()
cluster.close()
"""

NSYS = """#!/bin/sh
# In place of Nsight Systems, which needs NVIDIA's driver: notes its options, becomes what it would profile.
echo "$@" >>FOLDER/profiled
while [ "${1##*python*}" ]; do shift; done
exec "$@"
"""

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

INSIDE = """
import sys
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from slipway.dist.mesh import Mesh
from slipway.dist.placing import Share
from slipway.dist.ray import Cluster, Wanted
from slipway.exits import Exit

class Inside:
    def places(self, chosen):
        cluster = Cluster()
        try:
            return [seat.address for seat in cluster.place(Wanted(Mesh(tp=2), Share("CPU", 1), chosen))]
        except Exit as cause:
            return cause.message
        finally:
            cluster.close()

ray.init(logging_level="warning")
group = ray.util.placement_group([{"CPU": 1, f"node:{address}": 0.001} for address in sys.argv[1:]])
assert group.wait(20)
here = PlacementGroupSchedulingStrategy(group, 1, placement_group_capture_child_tasks=True)
inside = ray.remote(Inside).options(num_cpus=0, scheduling_strategy=here).remote()
for chosen in ([], [1, 0], [0, 1], [1, 7], [1, 1]):
    print(">", ray.get(inside.places.remote(chosen)), flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayHosts]:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as place:
        folder = Path(place)
        (folder / "bin").mkdir()
        (folder / "bin" / "nsys").write_text(NSYS.replace("FOLDER", place))
        (folder / "bin" / "nsys").chmod(0o755)
        with ray_hosts(folder, 2) as made:
            yield made


def answer(driver: subprocess.Popen[str], *question: int) -> str:
    """What it says next, or to a question; Ray mixes its own lines in."""
    if question:
        driver.stdin.write(" ".join(map(str, question)) + "\n")
        driver.stdin.flush()
    return next(line for line in driver.stdout if line.startswith("> "))[2:-1]


def ranks(host: Host) -> list[int]:
    return [pid for pid, command in host.processes().items() if "-m standing_rank" in command]


def wait_until(met: Callable[[], bool], patience: float = 15) -> None:
    end = time.monotonic() + scaled(patience)
    while not met():
        assert time.monotonic() < end
        time.sleep(0.05)


def nothing_is_left(cluster: RayHosts) -> Callable[[], bool]:
    return lambda: (
        not any(
            "-m standing_rank" in command or "ray::Occupant" in command
            for host in cluster.hosts
            for command in host.processes().values()
        )
    )


def test_ranks_are_placed_together_and_told_apart_when_they_end(cluster: RayHosts, tmp_path: Path):
    first, second = cluster.hosts
    with cluster.drive(SEATED, tmp_path) as driver:
        addresses = json.loads(answer(driver))
        assert addresses == [first.address] * 2 + [second.address] * 2
        wait_until(lambda: {"1", "2", "3"} == {path.name for path in tmp_path.iterdir()})
        said = {rank: json.loads((tmp_path / str(rank)).read_text()) for rank in (1, 2, 3)}
        assert [said[rank][0] for rank in (1, 2, 3)] == [first.name, second.name, second.name]
        carried = {"SLIPWAY_CACHE": "/carried", "RAY_AUTH_TOKEN": None, "RAY_AUTH_MODE": "token"}
        assert all(environment == carried for _, environment in said.values())

        os.kill(ranks(first)[0], signal.SIGUSR1)
        assert answer(driver, 1, 10) == "ended with SIGUSR1"
        assert answer(driver, 2, 0) == "None"

        for pid, command in second.processes().items():
            if "ray::Occupant" in command:
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not ranks(second))
        assert answer(driver, 2, 10).startswith("was lost with its actor: ")

        driver.stdin.close()
        assert answer(driver) == "closed"
        wait_until(nothing_is_left(cluster))


def test_nothing_outlives_a_driver_that_is_killed(cluster: RayHosts, tmp_path: Path):
    with cluster.drive(SEATED, tmp_path) as driver:
        answer(driver)
        wait_until(lambda: len(ranks(cluster.hosts[1])) == 2)
        driver.kill()
        wait_until(nothing_is_left(cluster))


def test_what_a_cluster_cannot_give_is_told_with_what_it_has(cluster: RayHosts):
    with cluster.drive(REFUSED) as driver:
        assert answer(driver) == (
            "DeviceUnavailable The Ray cluster has 4 CPU (10.76.0.1: 2, 10.76.0.2: 2), of which 4 are free; "
            "8 ranks want 1 CPU each, the first of them on this node, 10.76.0.1."
        )
        assert answer(driver).startswith("DeviceUnavailable The Ray cluster has 0 GPU")


def test_a_program_in_a_placement_group_takes_its_bundles(cluster: RayHosts):
    here, there = (host.address for host in cluster.hosts)
    with cluster.drive(INSIDE, there, here, here) as driver:
        assert answer(driver) == f"{[here, here]}"
        assert answer(driver) == f"{[here, there]}"
        assert answer(driver).startswith(f"The first rank runs in this process, on the node {here};")
        assert answer(driver).endswith("or in which no rank fits; it has 0, 1, 2.")
        assert (
            answer(driver)
            == "VLLM_RAY_BUNDLE_INDICES=1,1 does not name a bundle of its own for each of 2 ranks."
        )


def test_ranks_but_the_first_start_under_nsight(cluster: RayHosts):
    profiled = cluster.folder / "profiled"
    profiled.unlink(missing_ok=True)
    with cluster.drive(PROFILED) as driver:
        assert answer(driver) == "placed"
    actors = [line for line in profiled.read_text().splitlines() if "default_worker.py" in line]
    assert len(actors) == 1
    assert actors[0].startswith("profile ")
    assert " -t cuda,cudnn,cublas,nvtx " in actors[0]


@pytest.mark.parametrize(
    ("address", "why"),
    {
        "ray://10.0.0.1:10001": "reaches a Ray cluster from outside",
        "127.0.0.1:1": "Connection refused",
        "somewhere": r"an address is HOST:PORT\.",
        "auto": r"no cluster was started on this host\.",
    }.items(),
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Exit, match=f"RAY_ADDRESS={address} .*{why}|cluster at {address} .*{why}"):
        Cluster({"RAY_ADDRESS": address, "RAY_TMPDIR": str(tmp_path)})


def test_a_cluster_that_is_started_here_asks_for_its_token_and_ends_with_its_driver():
    alone = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder, hosts(1) as (host,):
        alone["RAY_TMPDIR"] = folder
        with host.start(sys.executable, "-c", LOCAL, env=alone, **PIPES) as driver:
            command = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={answer(driver)}"]
            stranger = alone | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed" * 8}
            refused = host.start(*command, **{**PIPES, "stderr": subprocess.STDOUT}, env=stranger)
            assert "Unauthenticated" in refused.communicate(timeout=scaled(60))[0]
            assert refused.returncode
            assert ":8265 " not in host.run("ss", "-Hltn")  # the dashboard's
            driver.communicate("\n", timeout=scaled(30))
        wait_until(lambda: not any("raylet" in process for process in host.processes().values()))
