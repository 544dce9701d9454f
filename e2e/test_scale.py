"""The operator among many: hundreds of services on nodes without machines, thousands of strangers' objects.

The short form is the soak's with smaller numbers, and with a resync that comes every few seconds.
"""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.operators import Namespace, Object, Operator, create_all, service, until
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


SHORT = Scale(40, 300, 16, 90, "main.RESYNC_SECONDS, main.RESYNC_SPREAD = 7.0, 2.0")
FULL = Scale(500, 5000, 900, 900)
FULL_AGAIN = replace(FULL, rest=120, resync="main.RESYNC_SECONDS = 50.0")
SPACES = 3


def test_many_services_converge_and_rest_among_strangers(plane: ControlPlane, tmp_path: Path) -> None:
    crowd(plane, tmp_path, SHORT, SHORT)


@pytest.mark.soak
def test_five_hundred_services_rest_for_a_quarter_of_an_hour(plane: ControlPlane, tmp_path: Path) -> None:
    crowd(plane, tmp_path, FULL, FULL_AGAIN)


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
    wait_ready(first, scale)
    print(f"\n{scale.services} services ready in {time.monotonic() - began:.0f} s")
    figures(first)
    at_rest(first, scale)
    first.stop()
    names = [space.name for space in spaces]
    second = Operator(plane, folder, "named", namespaces=names, code=program(again))
    second.wait_active()
    wait_ready(second, again)
    assert second.writes() == [], "what another instance has made needs no write"
    figures(second)
    at_rest(second, again)
    second.stop()
    assert (first.forbidden(), second.forbidden()) == (set(), set())
    assert "Traceback" not in first.log.read_text() + second.log.read_text()


def program(scale: Scale) -> str:
    return f"import sys; from slipway_operator import main; {scale.resync}; sys.exit(main.main())"


def placed(space: Namespace, number: int) -> tuple[str, Object]:
    """A service as a POST; each second one has two replicas and with them a budget of disruptions."""
    return SERVICE.path(space.name), service(f"model-{number}", replicas=1 + number % 2)


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


def wait_ready(operator: Operator, scale: Scale) -> None:
    """All are ready, and nothing is left to do."""

    def ready() -> bool:
        time.sleep(1)  # to look is work for the operator, too
        text = operator.get("/metrics")[1]
        counts = ("resources", scale.services), ("queue_depth", 0)
        return "slipway_operator_unready{" not in text and all(
            f"slipway_operator_{name} {count:.1f}\n" in text for name, count in counts
        )

    until(ready, lambda: f"{operator.get('/metrics')[1]}\nevery service is ready", scale.patience)


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
    assert largest < 200 * MEBIBYTE
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


def figures(operator: Operator) -> None:
    """Print what its work so far has cost."""
    fields = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
    spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    count = operator.reconciled()
    print(f"{count:.0f} reconciliations, {spent:.1f} s of CPU, {spent / count * 1000:.1f} ms each, "
          f"{resident(operator) / MEBIBYTE:.0f} MiB")  # fmt: skip
