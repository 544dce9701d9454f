"""The API server goes away, or the operator that holds the Lease does: what follows, and what must not."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from e2e.ground.build import Binaries
from e2e.ground.control_plane import ControlPlane
from e2e.ground.names import API_PORT
from e2e.ground.pki import Authority
from e2e.operators import (
    WRITES,
    Namespace,
    Object,
    Operator,
    create_all,
    define,
    fresh_namespace,
    promptly,
    service,
    until,
)
from slipway_operator.cluster import MADE, SERVICE
from slipway_operator.health import ANSWERING

TAKEOVER = 40.0
"""Seconds from the death of the one who holds the Lease to the first write of another."""
OURS = "app.kubernetes.io/managed-by=slipway"
KINDS = "deployments,services,poddisruptionbudgets,controllerrevisions.apps"
PLURALS = {kind.plural for kind in MADE}


@pytest.fixture(scope="module")
def plane(binaries: Binaries, carries_control_plane: None) -> Iterator[ControlPlane]:
    """A control plane of its own: other tests would not like its outages."""
    with ControlPlane(binaries) as fresh:
        define(fresh)
        yield fresh


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[Namespace]:
    with fresh_namespace(plane, "outage") as made:
        yield made


def test_an_outage_of_five_seconds_deletes_nothing(namespace: Namespace, tmp_path: Path) -> None:
    outage(namespace, tmp_path, seconds=5)


@pytest.mark.soak
def test_an_outage_of_a_minute_deletes_nothing(namespace: Namespace, tmp_path: Path) -> None:
    outage(namespace, tmp_path, seconds=60)


def outage(namespace: Namespace, folder: Path, seconds: float) -> None:
    """Some services stand, some are being made when the API server goes; afterwards all are as asked for."""
    plane = namespace.plane
    operator = Operator(plane, folder, namespace.name, namespaces=[namespace.name])
    operator.wait_active()
    standing = [f"standing-{number}" for number in range(10)]
    begun = [f"begun-{number}" for number in range(10)]
    create(namespace, standing)
    until(lambda: complete(namespace, standing), "the first services are made")
    before = {item["metadata"]["uid"]: name_of(item) for item in namespace.all(KINDS, "-l", OURS)}
    create(namespace, begun)
    first = f"{OURS},app.kubernetes.io/instance={begun[0]}"
    until(lambda: namespace.all("controllerrevisions.apps", "-l", first), "the next ones are begun")
    plane.stop_api(abruptly=True)
    back = time.monotonic() + seconds
    while time.monotonic() < back:
        assert operator.get("/healthz")[0] == 200, "a restart would not bring the API server back"
        time.sleep(0.5)
    if seconds > 2 * ANSWERING:
        assert operator.get("/readyz")[0] == 503
    plane.start_api()
    started = time.monotonic()
    namespace.kubectl("scale", "slip", *standing, "--replicas=3")
    late = [f"late-{number}" for number in range(5)]
    create(namespace, late)
    until(lambda: complete(namespace, [*standing, *begun, *late]), "all services are made", 90)
    until(lambda: {item["spec"]["replicas"] for item in namespace.all("deployments")} == {2, 3}, "scaled")
    took = time.monotonic() - started
    print(f"\n{seconds:.0f} s without an API server; all is made {took:.0f} s after its start")
    assert operator.process.poll() is None
    after = {item["metadata"]["uid"] for item in namespace.all(KINDS, "-l", OURS)}
    assert before.keys() <= after, {before[uid] for uid in before.keys() - after}
    assert not [event for event in operator.requests() if event["verb"].startswith("delete")]
    assert operator.metric('slipway_operator_reconciles_total{outcome="failed"}') == 0
    operator.stop()
    assert operator.forbidden() == set()
    assert "Traceback" not in operator.log.read_text(), operator.log.read_text()


def test_an_authority_that_was_replaced_is_trusted_as_soon_as_its_certificate_is_there(
    namespace: Namespace, tmp_path: Path
) -> None:
    """To who asks it for `localhost`, the API server comes back with a certificate of another authority."""
    plane = namespace.plane
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(plane.authority.certificate.read_bytes())
    kubeconfig = plane.kubeconfig_for(f"operator:{namespace.name}")
    document = json.loads(kubeconfig.read_text())
    document["clusters"][0]["cluster"] = {
        "server": f"https://localhost:{API_PORT}",
        "certificate-authority": str(trusted),
    }
    kubeconfig.write_text(json.dumps(document))
    operator = Operator(plane, tmp_path, namespace.name, namespaces=[namespace.name], kubeconfig=kubeconfig)
    operator.wait_active()
    standing = [f"standing-{number}" for number in range(10)]
    create(namespace, standing)
    until(lambda: complete(namespace, standing), "the first services are made")
    replaced = Authority(tmp_path / "replaced")
    shown = replaced.issue("apiserver", "kube-apiserver", hosts=("localhost",))
    plane.stop_api(abruptly=True)
    plane.start_api(f"--tls-sni-cert-key={shown.certificate},{shown.key}:localhost")
    late = [f"late-{number}" for number in range(10)]
    create(namespace, late)
    until(lambda: "certificate verify failed" in operator.log.read_text(), "it does not trust that one")
    assert operator.get("/healthz")[0] == 200
    trusted.write_bytes(replaced.certificate.read_bytes())
    began = time.monotonic()
    until(lambda: complete(namespace, [*standing, *late]), "all services are made")
    namespace.kubectl("scale", "slip", *standing, "--replicas=3")
    until(lambda: {item["spec"]["replicas"] for item in namespace.all("deployments")} == {2, 3}, "scaled")
    print(f"\nall is made and scaled {time.monotonic() - began:.0f} s after the certificate was there")
    assert operator.process.poll() is None
    operator.stop()
    assert "Traceback" not in operator.log.read_text(), operator.log.read_text()


def test_a_killed_holder_is_followed_amid_its_work_and_nothing_is_made_twice(
    namespace: Namespace, tmp_path: Path
) -> None:
    first, second = pair(namespace, tmp_path)
    names = [f"model-{number}" for number in range(20)]
    create(namespace, names)
    until(lambda: len(namespace.all("deployments")) >= 5, "some are made")
    first.send(signal.SIGKILL)
    killed = time.monotonic()
    assert second.writes() == [], "only the holder writes"
    assert (second.get("/readyz")[0], second.metric("slipway_operator_active")) == (200, 0)
    promptly(second.writes, "the other takes over", TAKEOVER)
    print(f"\ntaken over after {time.monotonic() - killed:.0f} s")
    until(lambda: complete(namespace, names), "all are made")
    assert made_twice(first, second) == {}
    assert overlap(first, second) == []
    second.stop()
    assert (first.forbidden(), second.forbidden()) == (set(), set())


@pytest.mark.soak
def test_a_frozen_holder_writes_no_more_when_it_thaws(namespace: Namespace, tmp_path: Path) -> None:
    first, second = pair(namespace, tmp_path)
    names = [f"model-{number}" for number in range(20)]
    create(namespace, names)
    until(lambda: complete(namespace, names), "all are made")
    first.send(signal.SIGSTOP)
    promptly(second.is_active, "the other takes over", TAKEOVER)
    written = len(first.writes())
    namespace.kubectl("scale", "slip", *names, "--replicas=3")
    first.send(signal.SIGCONT)
    until(lambda: {item["spec"]["replicas"] for item in namespace.all("deployments")} == {3}, "scaled")
    until(lambda: first.get("/readyz")[0] == 200, "the first has caught up")
    until(lambda: first.metric("slipway_operator_queue_depth") == 0, "its queue is empty")
    assert first.metric("slipway_operator_active") == 0
    assert first.writes()[written:] == []
    assert made_twice(first, second) == {}
    for operator in (first, second):
        operator.stop()
        assert "Traceback" not in operator.log.read_text(), operator.log.read_text()


def pair(namespace: Namespace, folder: Path) -> tuple[Operator, Operator]:
    """One that holds the Lease, and one that waits for it."""
    name = namespace.name
    first = Operator(namespace.plane, folder, f"{name}-first", namespaces=[name])
    first.wait_active()
    return first, Operator(namespace.plane, folder, f"{name}-second", namespaces=[name])


def create(namespace: Namespace, names: Sequence[str]) -> None:
    place = SERVICE.path(namespace.name)
    create_all(namespace.plane, [(place, service(name, replicas=2)) for name in names])


def complete(namespace: Namespace, names: Sequence[str]) -> bool:
    """Whether every child of every service is there, and the status tells of it."""
    found = Counter(
        name_of(item) for item in namespace.all("deployments,services,poddisruptionbudgets", "-l", OURS)
    )
    told = {
        name_of(item)
        for item in namespace.all("inferenceservices.slipway.dev")
        if item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"]
    }
    return told.issuperset(names) and all(found[name] == 3 for name in names)


def name_of(item: Object) -> str:
    return str(item["metadata"]["name"])


def made_twice(*operators: Operator) -> dict[str, int]:
    """Children that were written more than once where nothing but their making was asked for."""
    made = Counter(
        event["requestURI"].split("?")[0]
        for operator in operators
        for event in operator.requests()
        if event["verb"] in WRITES
        and event["objectRef"]["resource"] in PLURALS
        and event["responseStatus"]["code"] == 201
    )
    return {path: count for path, count in made.items() if count > 1}


def overlap(first: Operator, second: Operator) -> list[str]:
    """Writes that the first asked for after the second had begun."""
    begun = min(event["requestReceivedTimestamp"] for event in written(second))
    return [event["requestURI"] for event in written(first) if event["requestReceivedTimestamp"] >= begun]


def written(operator: Operator) -> list[Object]:
    return [
        event
        for event in operator.requests()
        if event["verb"] in WRITES and event["objectRef"]["resource"] != "leases"
    ]
