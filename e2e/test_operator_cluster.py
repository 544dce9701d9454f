"""The operator for the whole cluster: optional kinds, nodes, claims, events, and no right left unused."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.ground.control_plane import ControlPlane
from e2e.operators import (
    Namespace,
    Object,
    Operator,
    defined,
    delete_definitions,
    fresh_namespace,
    served,
    service,
    taking_anything,
    until,
)
from slipway_operator.cluster import MADE, OPTIONAL, Kind
from slipway_operator.permissions import CLUSTER_RULES, LEASE_RULES, SERVICE_RULES

MONITORING = "monitoring.coreos.com"
IMPATIENT = """
import sys
from slipway_operator import events, main
main.LOOK_EVERY, events.FIRST_LOOK = 2.0, 2.0
sys.exit(main.main())
"""


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with our CRD and those of the monitors; what it had not before goes again."""
    present = control_plane.kubectl("get", "customresourcedefinitions", "-o", "name")
    monitors = [taking_anything(kind) for kind in OPTIONAL if f"{kind.plural}.{kind.group}" not in present]
    added = [item["metadata"]["name"] for item in monitors]
    with defined(control_plane):
        if monitors:
            control_plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(monitors))
        for kind in OPTIONAL:
            served(control_plane, f"{MONITORING}/v1/{kind.plural}")
        yield control_plane
        if added:
            delete_definitions(control_plane, *added)


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[Namespace]:
    with fresh_namespace(plane, "operator") as made:
        yield made


@pytest.fixture
def operator(plane: ControlPlane, tmp_path: Path) -> Iterator[Operator]:
    name = f"cluster-{uuid.uuid4().hex[:8]}"
    facts = {"monitoringLabels": {"release": "main"}, "imagePullSecrets": ["mirror"]}
    running = Operator(plane, tmp_path, name, facts=facts, code=IMPATIENT)
    try:
        running.wait_active()
        yield running
    finally:
        running.stop()
    assert running.forbidden() == set()
    assert "Traceback" not in running.log.read_text(), running.log.read_text()


def stray(kind: Kind, owner: Object) -> Object:
    """An object that an earlier version of the operator might have made for the resource."""
    metadata = owner["metadata"]
    spec: dict[str, Any] = {"selector": {"matchLabels": {"stray": "yes"}}}
    if kind.name == "Deployment":
        pod = {"containers": [{"name": "server", "image": "registry.example/image:1"}]}
        spec |= {"replicas": 0, "template": {"metadata": {"labels": {"stray": "yes"}}, "spec": pod}}
    if kind.name == "NetworkPolicy":
        spec = {"podSelector": {}}
    if kind.name == "Service":
        spec = {"ports": [{"port": 1}], "selector": {"stray": "yes"}}
    reference = {name: owner[name] for name in ("apiVersion", "kind")}
    reference |= {"name": metadata["name"], "uid": metadata["uid"], "controller": True}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": "renamed",
            "labels": {"app.kubernetes.io/managed-by": "slipway"},
            "ownerReferences": [reference],
        },
        **({"revision": 0, "data": {"old": True}} if kind.name == "ControllerRevision" else {"spec": spec}),
    }


@pytest.fixture
def machine(plane: ControlPlane) -> Iterator[None]:
    """A node with a device, where only those run that tolerate it."""
    facts = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
    labels = {"kubernetes.io/arch": "amd64", **facts}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "machine", "labels": labels},
        "spec": {"taints": [{"key": "machine", "effect": "NoSchedule"}]},
    }
    plane.kubectl("create", "-f", "-", input=json.dumps(node))
    amounts = json.dumps({"status": {part: {"nvidia.com/gpu": "1"} for part in ("capacity", "allocatable")}})
    plane.kubectl("patch", "node", "machine", "--subresource=status", "-p", amounts)
    yield
    plane.kubectl("delete", "node", "machine")


def test_every_right_is_used_and_none_is_missing(
    machine: None, operator: Operator, namespace: Namespace
) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "cache"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    cached = {"hub": {"id": "org/model"}, "cache": {"pvc": "cache"}}
    namespace.apply(
        claim,
        service("by-service", replicas=2, monitoring={"enabled": True}, service={"from": []}),
        service("by-pod", monitoring={"enabled": True, "kind": "PodMonitor"}),
        service("cached", model=cached),
        service("with-gpu", devices={"vendor": "nvidia"}),
    )
    made = (
        "servicemonitor/by-service",
        "podmonitor/by-pod",
        "networkpolicy/by-service",
        "deployment/with-gpu",
    )
    for place in made:
        until(lambda: namespace.get(*place.split("/")), place)  # noqa: B023
    refuse(namespace, "with-gpu")
    assert namespace.the("servicemonitor", "by-service")["metadata"]["labels"]["release"] == "main"
    cached_pods = namespace.the("deployment", "cached")["spec"]
    assert cached_pods["strategy"]["type"] == "Recreate"
    assert cached_pods["template"]["spec"]["imagePullSecrets"] == [{"name": "mirror"}]
    owner = namespace.the("inferenceservices.slipway.dev", "by-pod")
    for kind in (*MADE, *OPTIONAL):
        namespace.apply(stray(kind, owner))
        plural = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        until(lambda: namespace.get(plural, "renamed") is None, f"the stray {kind.name} goes")  # noqa: B023
    namespace.apply(service("by-pod", monitoring={"enabled": False}, engine={"maxModelLen": 512}))
    until(lambda: namespace.get("podmonitor", "by-pod") is None, "no PodMonitor")
    namespace.kubectl("label", "servicemonitor", "by-service", "release=other", "--overwrite")
    label = "release"
    until(
        lambda: namespace.the("servicemonitor", "by-service")["metadata"]["labels"][label] == "main",
        "the label",
    )
    for suspend in (True, False, True):
        namespace.apply(service("with-gpu", devices={"vendor": "nvidia"}, suspend=suspend))
        wanted = 0 if suspend else 1
        until(lambda: namespace.the("deployment", "with-gpu")["spec"]["replicas"] == wanted, "replicas")  # noqa: B023
    ask_whether_it_fits(namespace)
    told = namespace.all("events.events.k8s.io")
    assert {"Accepted"} <= {event["reason"] for event in told if event["regarding"]["name"] == "by-pod"}
    until(lambda: rights() <= used(operator), lambda: f"unused: {rights() - used(operator)}")
    assert used(operator) == rights()


def ask_whether_it_fits(namespace: Namespace) -> None:
    """Have a pod ask that until the document wants no answer."""
    tolerant = {"tolerations": [{"operator": "Exists"}]}
    wanted: Object = {"devices": {"vendor": "nvidia"}, "scheduling": tolerant}
    namespace.apply(service("asked", **wanted))

    def asks() -> bool:
        pods = namespace.all("pods", "--selector", "app.kubernetes.io/instance=asked")
        return any(pod["metadata"]["name"].startswith("asked-fit-") for pod in pods)

    until(asks, "a pod asks")
    assert namespace.get("deployment", "asked") is None
    namespace.apply(service("asked", **wanted, rollout={"fit": "Off"}))
    until(lambda: namespace.get("deployment", "asked"), "the rollout")
    until(lambda: not asks(), "no pod asks")


def refuse(namespace: Namespace, name: str) -> None:
    """Have the service's pod find no node, as a scheduler says it; none runs here."""
    selector = ("--selector", f"app.kubernetes.io/instance={name}")
    pod = until(lambda: next(iter(namespace.all("pods", *selector)), None), f"a pod of {name}")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    }
    patch = json.dumps({"status": {"conditions": [condition]}})
    namespace.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "-p", patch)


def rights() -> set[tuple[str, str]]:
    return {
        (verb, resource)
        for rule in (*SERVICE_RULES, *CLUSTER_RULES, *LEASE_RULES)
        for resource in rule.resources
        for verb in rule.verbs
    }


def used(operator: Operator) -> set[tuple[str, str]]:
    """Verbs and resources of the requests so far; an apply that makes its object needs `create` as well."""
    found: set[tuple[str, str]] = set()
    for event in operator.requests():
        if reference := event.get("objectRef"):
            part = f"/{reference['subresource']}" if "subresource" in reference else ""
            found.add((event["verb"], reference["resource"] + part))
            if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201:
                found.add(("create", reference["resource"]))
    return found


def test_what_the_release_does_not_have_gets_no_pods_unless_the_image_is_another(
    operator: Operator, namespace: Namespace
) -> None:
    engine = {"kvTransferConfig": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}
    newer = service("newer", engine=engine, runtime={"image": "registry.example/newer:2"})
    namespace.apply(service(engine=engine), newer)
    until(lambda: namespace.condition("demo", "Valid").get("reason") == "NotSupported", "the reason")
    assert "spec.engine.kvTransferConfig" in namespace.condition("demo", "Valid")["message"]
    until(lambda: namespace.get("deployment", "newer"), "the Deployment")
    assert namespace.get("deployment", "demo") is None


def test_a_monitor_is_made_once_its_kind_appears(
    plane: ControlPlane, namespace: Namespace, tmp_path: Path
) -> None:
    delete_definitions(plane, f"servicemonitors.{MONITORING}")
    monitor = next(kind for kind in OPTIONAL if kind.name == "ServiceMonitor")
    running = Operator(plane, tmp_path, f"later-{uuid.uuid4().hex[:8]}", code=IMPATIENT)
    try:
        running.wait_active()
        namespace.apply(service(monitoring={"enabled": True}))
        until(lambda: namespace.get("deployment", "demo"), "the Deployment")
        until(lambda: "ServiceMonitor" in str(namespace.condition("demo", "Unmonitored")), "the condition")
        plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(taking_anything(monitor)))
        served(plane, f"{MONITORING}/v1/servicemonitors")
        until(lambda: namespace.get("servicemonitor", "demo"), "the ServiceMonitor")
        until(lambda: not namespace.condition("demo", "Unmonitored"), "the condition's end")
    finally:
        running.stop()
