"""Hundreds of services that load at once, on nodes without machines: how often their statuses are written."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.operators import Namespace, Operator, administrator, create_all, service, until
from slipway_operator.cluster import KINDS, SERVICE

POD = KINDS["Pod"]
SERVICES = 500
MEASURED = 120
"""Seconds."""
SECOND = datetime.timedelta(seconds=1)


@pytest.mark.soak
def test_five_hundred_loads_are_told_without_haste_and_none_is_old(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """At most 20 statuses are written in a second, and each of them again within 30 seconds."""
    plane.kwok(4)
    space = Namespace(plane, "models")
    operator = Operator(plane, tmp_path, "loads")
    operator.wait_active()
    path = SERVICE.path(space.name)
    create_all(plane, ((path, service(f"model-{number}")) for number in range(SERVICES)))
    operator.wait_all_ready(SERVICES, 900)
    with servers_that_load(plane):
        no_longer_ready(plane, space)
        until(lambda: len(loading(space)) == SERVICES, lambda: f"{len(loading(space))} load", 300)
        began = datetime.datetime.now(datetime.UTC)
        time.sleep(MEASURED)
        ended = datetime.datetime.now(datetime.UTC)
        written = sorted(statuses_written(operator, began))
    operator.stop()
    times = [when for when, _ in written]
    busiest = max(bisect_right(times, when + SECOND) - number for number, when in enumerate(times))
    ages = [age for name in {name for _, name in written} for age in silences(written, name, began, ended)]
    print(f"\n{len(written) / MEASURED:.1f} statuses a second, {busiest} in the busiest; the oldest was "
          f"{max(ages):.1f} s old")  # fmt: skip
    assert {name for _, name in written} == {f"model-{number}" for number in range(SERVICES)}
    assert busiest <= 20
    assert max(ages) <= 30
    assert operator.forbidden() == set()


@contextmanager
def servers_that_load(plane: ControlPlane) -> Iterator[None]:
    """At each address of the pods."""
    words = (sys.executable, "-m", "e2e.loading_servers", plane.addresses.pods)
    process = plane.popen(*words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield
    finally:
        process.kill()
        process.wait()


def no_longer_ready(plane: ControlPlane, space: Namespace) -> None:
    """All pods run and admit no requests, which nodes without machines do not say by themselves."""
    api = administrator(plane)
    for pod in space.all("pods"):
        status = pod["status"]
        for one in status["conditions"]:
            if one["type"] in ("Ready", "ContainersReady"):
                one["status"] = "False"
        for one in status["containerStatuses"]:
            one["ready"] = False
        changed = {"status": {name: status[name] for name in ("conditions", "containerStatuses")}}
        path = f"{POD.path(space.name, pod['metadata']['name'])}/status"
        with plane.inside():
            api.call("PATCH", path, None, changed, "application/merge-patch+json")


def loading(space: Namespace) -> list[str]:
    """Services of which the status says how far they are."""
    return [
        item["metadata"]["name"]
        for item in space.all(SERVICE.plural)
        if re.match(r"Loading: weights \d", str((item.get("status") or {}).get("summary")))
    ]


def statuses_written(operator: Operator, since: datetime.datetime) -> Iterator[tuple[datetime.datetime, str]]:
    """When the API server received each status since then, and of which service."""
    for event in operator.requests():
        at = datetime.datetime.fromisoformat(event["requestReceivedTimestamp"])
        if at >= since and event["verb"] == "patch" and event["objectRef"].get("subresource") == "status":
            yield at, event["objectRef"]["name"]


def silences(
    written: Sequence[tuple[datetime.datetime, str]],
    name: str,
    began: datetime.datetime,
    ended: datetime.datetime,
) -> Iterator[float]:
    """How old the status of a service became before each new one, and until the end, in seconds."""
    times = [began, *(when for when, whose in written if whose == name and when < ended), ended]
    return ((later - before).total_seconds() for before, later in pairwise(times))
