"""The operator among many: thousands of services on nodes without machines, thousands of strangers' objects.

The short form is the soaks' with smaller numbers, and with a resync that comes every few seconds.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.operators import (
    Namespace,
    Object,
    Operator,
    create_all,
    promptly,
    service,
    until,
)
from slipway_operator.cluster import KINDS, SERVICE, Kind

CONFIG_MAP = Kind("ConfigMap", "", "v1", "configmaps")
POD = KINDS["Pod"]
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Scale:
    services: int
    strangers: int
    """Pods of nobody of ours, and as many ConfigMaps."""
    rest: float
    """Seconds in which requests are counted."""
    patience: float
    """Seconds within which all services must be ready."""
    resync: str = "pass"
    """Python that makes the operator resync more often."""
    memory: int = 200 * MEBIBYTE
    """Bytes that it may occupy."""


SHORT = Scale(40, 300, 16, 90, "main.RESYNC_SECONDS, main.RESYNC_SPREAD = 7.0, 2.0")
FULL = Scale(500, 5000, 900, 900)
FULL_AGAIN = replace(FULL, rest=120, resync="main.RESYNC_SECONDS = 50.0")
# As much memory as the chart gives it.
FLEET = Scale(5000, 0, 180, 7200, "main.RESYNC_SECONDS = 100.0", memory=512 * MEBIBYTE)
SPACES = 3


def test_many_services_converge_and_rest_among_strangers(plane: ControlPlane, tmp_path: Path) -> None:
    crowd(plane, tmp_path, SHORT, SHORT)


@pytest.mark.soak
def test_five_hundred_services_rest_for_a_quarter_of_an_hour(plane: ControlPlane, tmp_path: Path) -> None:
    crowd(plane, tmp_path, FULL, FULL_AGAIN)


@pytest.mark.soak
def test_five_thousand_services_fit_into_the_memory_of_the_chart(plane: ControlPlane, tmp_path: Path) -> None:
    plane.kwok(2 * FLEET.services // 240)
    spaces = [Namespace(plane, f"models-{number}") for number in range(SPACES)]
    operator = Operator(plane, tmp_path, "fleet", code=program(FLEET))
    operator.wait_active()
    began = time.monotonic()
    create_all(plane, (placed(spaces[number % SPACES], number, 2) for number in range(FLEET.services)))
    operator.wait_all_ready(FLEET.services, FLEET.patience)
    print(f"\n{FLEET.services} services ready in {time.monotonic() - began:.0f} s")
    figures(operator)
    at_rest(operator, FLEET)
    for number in range(0, FLEET.services, FLEET.services // 5):
        change(spaces[number % SPACES], f"model-{number}")
    assert largest_ever(operator) < FLEET.memory
    operator.stop()
    assert operator.forbidden() == set()
    assert "Traceback" not in operator.log.read_text()


def change(space: Namespace, name: str) -> None:
    """A changed document is applied within two seconds."""
    patch = json.dumps({"spec": {"engine": {"maxModelLen": 777}}})
    space.kubectl("patch", SERVICE.plural, name, "--type=merge", f"--patch={patch}")
    began = time.monotonic()

    def applied() -> bool:
        return "777" in str(
            space.the("deployment", name)["spec"]["template"]["spec"]["containers"][0]["args"]
        )

    promptly(applied, f"{name} is changed", 2)
    print(f"{name} is changed within {time.monotonic() - began:.2f} s")


def crowd(plane: ControlPlane, folder: Path, scale: Scale, again: Scale) -> None:
    """For the whole cluster, then `again` with Roles in the namespaces only: all are ready, and rest."""
    plane.kwok(2 + scale.strangers // 200)
    spaces = [Namespace(plane, f"models-{number}") for number in range(SPACES)]
    strangers = Namespace(plane, "strangers")
    create_all(plane, (stranger(strangers, number, kind) for number in range(scale.strangers)
                       for kind in (POD, CONFIG_MAP)))  # fmt: skip
    first = Operator(plane, folder, "everywhere", code=program(scale))
    first.wait_active()
    began = time.monotonic()
    create_all(plane, (placed(spaces[number % SPACES], number) for number in range(scale.services)))
    first.wait_all_ready(scale.services, scale.patience)
    print(f"\n{scale.services} services ready in {time.monotonic() - began:.0f} s")
    figures(first)
    at_rest(first, scale)
    first.stop()
    names = [space.name for space in spaces]
    second = Operator(plane, folder, "named", namespaces=names, code=program(again))
    second.wait_active()
    second.wait_all_ready(again.services, again.patience)
    assert second.writes() == [], "what another instance has made needs no write"
    figures(second)
    at_rest(second, again)
    second.stop()
    assert (first.forbidden(), second.forbidden()) == (set(), set())
    assert "Traceback" not in first.log.read_text() + second.log.read_text()


def program(scale: Scale) -> str:
    return f"import sys; from slipway_operator import main; {scale.resync}; sys.exit(main.main())"


def placed(space: Namespace, number: int, replicas: int = 0) -> tuple[str, Object]:
    """A service as a POST. Unless said, each second one has two replicas and with them a budget of
    disruptions."""
    return SERVICE.path(space.name), service(f"model-{number}", replicas=replicas or 1 + number % 2)


def stranger(space: Namespace, number: int, kind: Kind) -> tuple[str, Object]:
    """A pod, which runs, or a ConfigMap, with a kibibyte that nobody of ours should keep."""
    name = f"stranger-{number}"
    item: Object = {"apiVersion": "v1", "kind": kind.name, "metadata": {"name": name}}
    if kind is CONFIG_MAP:
        item["data"] = {"text": "x" * 1024}
    else:
        item["metadata"]["labels"] = {"app.kubernetes.io/name": "slipway", "padding": "x" * 63}
        node = f"fake-{number % (2 + number // 200)}"
        item["spec"] = {"nodeName": node, "containers": [{"name": "one", "image": "stranger.example/one:1"}]}
    return kind.path(space.name), item


def at_rest(operator: Operator, scale: Scale) -> None:
    """Resync and Lease included, it asks less than once a second, writes nothing and stays small."""
    settle(operator)
    began = datetime.datetime.now(datetime.UTC)
    done, written = operator.reconciled(), len(operator.writes())
    largest = 0
    deadline = time.monotonic() + scale.rest
    while time.monotonic() < deadline:
        largest = max(largest, resident(operator))
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
    asked = {
        event["auditID"]: f"{event['verb']} {event['requestURI'].split('?')[0]}"
        for event in operator.requests()
        if datetime.datetime.fromisoformat(event["requestReceivedTimestamp"]) >= began
    }
    rate = len(asked) / scale.rest
    print(f"{operator.user}: {rate:.2f} requests a second, {largest / MEBIBYTE:.0f} MiB")
    assert rate < 1, sorted(asked.values())
    assert largest < scale.memory
    assert operator.writes()[written:] == []
    assert operator.reconciled() - done >= scale.services, "a resync looked at all of them"


def settle(operator: Operator) -> None:
    """Wait until three seconds have passed without a write."""

    def quiet() -> bool:
        before = len(operator.writes())
        time.sleep(3)
        return len(operator.writes()) == before

    until(quiet, "nothing is written any more", 120)


def resident(operator: Operator) -> int:
    """Bytes of memory that the operator occupies now."""
    pages = Path(f"/proc/{operator.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def largest_ever(operator: Operator) -> int:
    """Bytes of memory that the operator has occupied at most."""
    (line,) = re.findall(
        r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{operator.process.pid}/status").read_text(), re.M
    )
    return int(line) << 10


def figures(operator: Operator) -> None:
    """Print what its work so far has cost."""
    fields = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
    spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    count = operator.reconciled()
    now, most = (size / MEBIBYTE for size in (resident(operator), largest_ever(operator)))
    print(f"{count:.0f} reconciliations, {spent:.1f} s of CPU, {spent / count * 1000:.1f} ms each, "
          f"{now:.0f} MiB now and {most:.0f} at most")  # fmt: skip
