"""The operator before a real API server with its controllers: no node, so pods stay Pending."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.ground.patience import at_most
from e2e.operators import Namespace, Object, Operator, defined, fresh_namespace, promptly, service, until

CHILDREN = "deployments,replicasets,pods,services,poddisruptionbudgets,controllerrevisions.apps"
OWN = "app.kubernetes.io/managed-by=slipway"

Start = Callable[..., Operator]


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    with defined(control_plane):
        yield control_plane


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[Namespace]:
    with fresh_namespace(plane, "operator") as made:
        yield made


@pytest.fixture
def start(namespace: Namespace, tmp_path: Path) -> Iterator[Start]:
    """Starts operators of the test's namespace; each ends with the test and was refused nothing."""
    running: list[Operator] = []

    def start_one(name: str = "a", **options: Any) -> Operator:
        user = f"{namespace.name}-{name}"
        running.append(Operator(namespace.plane, tmp_path, user, namespaces=[namespace.name], **options))
        return running[-1]

    yield start_one
    for operator in running:
        operator.stop()
    for operator in running:
        assert operator.forbidden() == set()
        assert "Traceback" not in operator.log.read_text(), operator.log.read_text()


@pytest.fixture
def operator(start: Start) -> Operator:
    running = start()
    running.wait_active()
    return running


def ready_reason(namespace: Namespace, name: str = "demo") -> str:
    return str(namespace.condition(name, "Ready").get("reason"))


def deployed(namespace: Namespace, name: str = "demo") -> Object:
    """The Deployment, once it and the status are there."""
    until(lambda: namespace.condition(name, "Ready"), f"a status of {name}")
    found: Object = until(lambda: namespace.get("deployment", name), f"the Deployment {name}")
    return found


def test_an_applied_service_becomes_its_objects_and_says_how_it_stands(
    operator: Operator, namespace: Namespace
) -> None:
    namespace.apply(service(replicas=2))
    deployment = deployed(namespace)
    until(lambda: len(namespace.all("pods", "-l", OWN)) == 2, "two pods")
    owner = namespace.get("inferenceservices.slipway.dev", "demo")
    assert owner is not None
    for item in namespace.all(
        "deployments,services,poddisruptionbudgets,controllerrevisions.apps", "-l", OWN
    ):
        (reference,) = item["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"]) == (owner["metadata"]["uid"], True)
        assert "blockOwnerDeletion" not in reference
    assert "finalizers" not in owner["metadata"]
    assert "kopf" not in str(owner["metadata"].get("annotations"))
    assert owner["status"]["observedGeneration"] == owner["metadata"]["generation"]
    assert deployment["spec"]["replicas"] == 2
    columns = namespace.kubectl("get", "slip", "demo")
    assert "Scheduling" in columns
    assert "http://demo" in columns
    assert operator.get("/healthz") == (200, "ok\n")
    assert operator.get("/readyz") == (200, "ok\n")


def at_rest(operator: Operator, namespace: Namespace) -> bool:
    """Whether a reconciliation wrote nothing: Kubernetes' controllers have told all that they will."""
    written, count = len(operator.writes()), operator.reconciled()
    namespace.kubectl("annotate", "slip", "demo", f"note={time.monotonic()}", "--overwrite")
    operator.wait_reconciled(count)
    return len(operator.writes()) == written


def test_nothing_is_written_where_nothing_differs(
    operator: Operator, namespace: Namespace, start: Start
) -> None:
    namespace.apply(service(replicas=2, resources={"cpu": "1000m", "memory": "1024Mi"}))
    deployed(namespace)
    until(lambda: len(namespace.all("pods", "-l", OWN)) == 2, "two pods")
    until(lambda: at_rest(operator, namespace), "the last status of the rollout is written")
    written = len(operator.writes())
    count = operator.reconciled()
    namespace.apply(service(replicas=2, resources={"cpu": "1000m", "memory": "1024Mi"}))
    namespace.kubectl(
        "annotate", "slip", "demo", "note=seen", "--overwrite"
    )  # an event without a change of the spec
    operator.wait_reconciled(count)
    assert operator.writes()[written:] == []
    operator.stop()
    successor = start(name="b")
    successor.wait_active()
    until(lambda: successor.reconciled() > 0, "a reconciliation of the successor")
    assert successor.writes() == []


def test_an_edited_or_deleted_child_is_back_within_five_seconds(
    operator: Operator, namespace: Namespace
) -> None:
    namespace.apply(service(replicas=2))
    before = deployed(namespace)
    port = '{"spec":{"ports":[{"name":"http","port":8000,"targetPort":9}]}}'
    until(lambda: namespace.get("service", "demo"), "the Service")
    namespace.kubectl("patch", "service", "demo", "--type=merge", "-p", port)
    promptly(
        lambda: namespace.the("service", "demo")["spec"]["ports"][0]["targetPort"] == "http", "the port", 5
    )
    namespace.kubectl("label", "poddisruptionbudget", "demo", "app.kubernetes.io/managed-by-")
    label = "app.kubernetes.io/managed-by"
    promptly(lambda: label in namespace.the("pdb", "demo")["metadata"]["labels"], "the label", 5)
    for kind in ("service", "deployment", "poddisruptionbudget"):
        old = namespace.the(kind, "demo")
        namespace.kubectl("delete", kind, "demo")
        uid = old["metadata"]["uid"]
        promptly(lambda: (new := namespace.get(kind, "demo")) and new["metadata"]["uid"] != uid, kind, 5)  # noqa: B023
    assert namespace.the("deployment", "demo")["spec"]["template"] == before["spec"]["template"]


def test_a_child_deleted_while_the_operator_was_away_and_etcd_compacted_is_back(
    operator: Operator, namespace: Namespace
) -> None:
    namespace.apply(service())
    old = deployed(namespace)
    operator.send(signal.SIGSTOP)
    namespace.kubectl("delete", "deployment", "demo")
    compact(namespace.plane)
    namespace.plane.stop_api()
    namespace.plane.start_api()
    operator.send(signal.SIGCONT)
    uid = old["metadata"]["uid"]
    promptly(
        lambda: (new := namespace.get("deployment", "demo")) and new["metadata"]["uid"] != uid,
        "a new one",
        30,
    )
    assert operator.process.poll() is None


def test_a_service_deleted_while_the_operator_was_away_is_not_made_again(
    operator: Operator, namespace: Namespace
) -> None:
    namespace.apply(service())
    deployed(namespace)
    until(lambda: at_rest(operator, namespace), "no write of it is under way")
    operator.send(signal.SIGSTOP)
    namespace.kubectl("delete", "slip", "demo")
    until(lambda: namespace.get("deployment", "demo") is None, "the garbage collector")
    compact(namespace.plane)
    namespace.plane.stop_api()
    namespace.plane.start_api()
    written = len(operator.writes())
    operator.send(signal.SIGCONT)
    until(lambda: operator.metric("slipway_operator_resources") == 0, "the operator knows")
    assert operator.writes()[written:] == []


def compact(plane: ControlPlane) -> None:
    """Make etcd forget everything but the latest revision."""
    etcd = "http://127.0.0.1:2379/v3/kv"
    program = (
        "import json, urllib.request as r\n"
        "ask = lambda path, body: json.load(r.urlopen(r.Request(path, json.dumps(body).encode())))\n"
        f"revision = ask('{etcd}/range', {{'key': 'AA=='}})['header']['revision']\n"
        f"ask('{etcd}/compaction', {{'revision': revision, 'physical': True}})\n"
    )
    plane.run("python3", "-c", program, check=True)


def test_deleting_the_service_removes_all_that_it_made(operator: Operator, namespace: Namespace) -> None:
    namespace.apply(service(replicas=2))
    deployed(namespace)
    namespace.kubectl("delete", "slip", "demo", at_most(60))
    until(lambda: namespace.all(CHILDREN, "-l", OWN) == [], "no children")
    assert operator.metric("slipway_operator_resources") == 0


def test_what_is_no_longer_rendered_goes(operator: Operator, namespace: Namespace) -> None:
    namespace.apply(service(replicas=2))
    deployed(namespace)
    until(lambda: namespace.get("pdb", "demo"), "a budget for two")
    namespace.apply(service(replicas=1, engine={"maxModelLen": 1024}))
    until(lambda: namespace.get("pdb", "demo") is None, "none for one")
    until(lambda: len(namespace.all("controllerrevisions.apps", "-l", OWN)) == 1, "one revision")
    assert len(namespace.all("replicasets", "-l", OWN)) == 2


def test_an_object_of_someone_else_is_never_touched(operator: Operator, namespace: Namespace) -> None:
    namespace.kubectl("create", "service", "clusterip", "demo", "--tcp=80:80")
    stranger = namespace.get("service", "demo")
    namespace.apply(service())
    until(lambda: ready_reason(namespace) == "NameConflict", "NameConflict")
    assert "Service demo" in namespace.condition("demo", "Ready")["message"]
    assert namespace.get("service", "demo") == stranger
    namespace.kubectl("delete", "service", "demo")
    count = operator.reconciled()
    namespace.kubectl("annotate", "slip", "demo", "look=again")
    operator.wait_reconciled(count)
    until(lambda: ready_reason(namespace) != "NameConflict", "no conflict")
    assert namespace.the("service", "demo")["metadata"]["ownerReferences"]


def test_a_scaled_service_stays_scaled(operator: Operator, namespace: Namespace) -> None:
    namespace.apply(service())
    deployed(namespace)
    namespace.kubectl("scale", "slip", "demo", "--replicas=3")
    until(lambda: namespace.the("deployment", "demo")["spec"]["replicas"] == 3, "three replicas")
    namespace.kubectl("delete", "deployment", "demo")
    until(
        lambda: (namespace.get("deployment", "demo") or {}).get("spec", {}).get("replicas") == 3,
        "three again",
    )
    scale = namespace.kubectl("get", "slip", "demo", "-o", "jsonpath={.spec.replicas} {.status.selector}")
    assert scale.startswith("3 app.kubernetes.io/")


def test_an_operator_that_ends_hands_over_at_once(start: Start, namespace: Namespace) -> None:
    first = start(name="first")
    first.wait_active()
    second = start(name="second")
    first.stop()
    assert first.process.returncode == 0
    promptly(second.is_active, "the second holds the Lease", 8)


NEXT_VERSION = """
import sys
from slipway.service import pod
before = pod._probes
def after(*arguments, **named):
    probes = before(*arguments, **named)
    probes["livenessProbe"]["periodSeconds"] = 17
    return probes
pod._probes = after
from slipway_operator.main import main
sys.exit(main())
"""


def test_another_version_of_the_operator_restarts_nothing(start: Start, namespace: Namespace) -> None:
    names = [f"model-{number}" for number in range(20)]
    old = start(name="old", facts={"cpuImage": "registry.example/old:1"})
    old.wait_active()
    namespace.apply(*(service(name) for name in names))
    until(lambda: len(namespace.all("deployments", "-l", OWN)) == 20, "20 Deployments")
    until(lambda: old.metric("slipway_operator_queue_depth") == 0, "an empty queue")
    before = {
        item["metadata"]["name"]: item["metadata"]["generation"] for item in namespace.all("deployments")
    }
    old.stop()
    new = start(name="new", facts={"cpuImage": "registry.example/new:2"}, code=NEXT_VERSION)
    new.wait_active()

    def told() -> bool:
        services = namespace.all("inferenceservices.slipway.dev")
        return all("UpgradeAvailable" in str(item.get("status")) for item in services)

    until(told, "UpgradeAvailable on all")
    after = {
        item["metadata"]["name"]: item["metadata"]["generation"] for item in namespace.all("deployments")
    }
    assert after == before
    told_of = namespace.condition("model-0", "UpgradeAvailable")["message"]
    assert "registry.example/new:2" in told_of
    assert "livenessProbe.periodSeconds" in told_of
    namespace.apply(service("model-0", rollout={"template": "Latest"}))

    def taken() -> bool:
        return "registry.example/new:2" in str(namespace.get("deployment", "model-0"))

    until(taken, "the new template where it is asked for")
    assert namespace.the("deployment", "model-1")["metadata"]["generation"] == before["model-1"]
