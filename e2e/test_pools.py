"""Pools of GPU nodes that grow and shrink: a service waits for the node that it wants, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.ground.build import Binaries
from e2e.ground.control_plane import ControlPlane
from e2e.operators import Namespace, Operator, define, service, until

KIND = "inferenceservices.slipway.dev"
GPU = "nvidia.com/gpu"
EIGHT = {"devices": {"vendor": "nvidia"}, "engine": {"tensorParallelSize": 8}}
IMPATIENT = """
import sys
from slipway_operator import events, main
events.FIRST_LOOK, events.LONGEST_INTERVAL = 1.0, 1.0
sys.exit(main.main())
"""


@pytest.fixture
def plane(binaries: Binaries, carries_control_plane: None) -> Iterator[ControlPlane]:
    """A control plane of the test's own: nodes that pretend to run pods would confuse other tests."""
    with ControlPlane(binaries) as fresh:
        define(fresh)
        yield fresh


@pytest.fixture
def models(plane: ControlPlane, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace that an operator serves."""
    operator = Operator(plane, tmp_path, "pools", code=IMPATIENT)
    try:
        operator.wait_active()
        yield Namespace(plane, "models")
        assert operator.forbidden() == set()
        assert "Traceback" not in operator.log.read_text(), operator.log.read_text()
    finally:
        operator.stop()


def until_summary(models: Namespace, name: str, summary: str) -> None:
    def found() -> str:
        return str((models.the(KIND, name).get("status") or {}).get("summary"))

    until(lambda: found() == summary, lambda: f"{name}: {found()!r} is {summary!r}", 60)


def autoscaler_says(models: Namespace, name: str, reason: str, message: str) -> None:
    """What the Cluster Autoscaler writes about a pod of the service."""
    (pod,) = models.all("pods", "--selector", f"app.kubernetes.io/instance={name}")
    metadata = pod["metadata"]
    regarded = {"apiVersion": "v1", "kind": "Pod", "namespace": models.name}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason.lower()}"},
        "involvedObject": {**regarded, "name": metadata["name"], "uid": metadata["uid"]},
        "reason": reason,
        "message": message,
        "type": "Normal",
        "source": {"component": "cluster-autoscaler"},
    }
    models.kubectl("create", "-f", "-", input=yaml.safe_dump(event))


def test_a_pool_at_zero_grows_for_what_no_present_node_can_hold(
    plane: ControlPlane, models: Namespace
) -> None:
    plane.kwok(1, {GPU: 4}, pool="small")
    placed = {**EIGHT, "scheduling": {"nodeSelector": {"pool": "large"}}}
    models.apply(service("anywhere", **EIGHT), service("placed", **placed))
    anywhere = "Unschedulable: wants nvidia.com/gpu 8, small-0 has 4"
    nowhere = "Unschedulable: none of 1 node fits: 1 node(s) didn't match Pod's node affinity/selector"
    until_summary(models, "anywhere", anywhere)
    until_summary(models, "placed", nowhere)
    autoscaler_says(
        models, "anywhere", "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max size reached"
    )
    autoscaler_says(models, "placed", "TriggeredScaleUp", "pod triggered scale-up: [{large 0->1 (max: 2)}]")
    until_summary(models, "anywhere", f"{anywhere}; the autoscaler adds no node")
    until_summary(models, "placed", f"{nowhere}; the autoscaler adds a node")
    plane.kwok(2, {GPU: 8}, pool="large")
    for name in ("anywhere", "placed"):
        until(lambda: models.condition(name, "Ready").get("status") == "True", f"{name} serves", 60)  # noqa: B023
    pods = models.all("pods")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"large-0", "large-1"}
