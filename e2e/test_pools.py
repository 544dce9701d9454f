"""Pools of GPU nodes that grow and shrink: a service waits for the node that it wants, and says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.operators import Namespace, Object, bind, happen, service, serving, until

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
def models(plane: ControlPlane, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace that an operator serves."""
    with serving(plane, tmp_path, "pools", code=IMPATIENT) as namespace:
        yield namespace


def until_summary(models: Namespace, name: str, summary: str) -> None:
    def found() -> str:
        return str((models.the(KIND, name).get("status") or {}).get("summary"))

    until(lambda: found() == summary, lambda: f"{name}: {found()!r} is {summary!r}")


def pod_of(models: Namespace, name: str) -> Object:
    (pod,) = models.all("pods", "--selector", f"app.kubernetes.io/instance={name}")
    return pod


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
    for name, reason, said in (
        ("anywhere", "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max size reached"),
        ("placed", "TriggeredScaleUp", "pod triggered scale-up: [{large 0->1 (max: 2)}]"),
    ):
        happen(models, pod_of(models, name), reason, said, "cluster-autoscaler")
    until_summary(models, "anywhere", f"{anywhere}; the autoscaler adds no node")
    until_summary(models, "placed", f"{nowhere}; the autoscaler adds a node")
    plane.kwok(2, {GPU: 8}, pool="large")
    for name in ("anywhere", "placed"):
        until(lambda: models.condition(name, "Ready").get("status") == "True", f"{name} serves")  # noqa: B023
    pods = models.all("pods")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"large-0", "large-1"}


def test_a_claim_that_another_node_holds_is_told_from_the_controller_s_event(
    plane: ControlPlane, models: Namespace
) -> None:
    """No volume of this cluster is attached to nodes, so that the event is written as its controller does."""
    machine = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "machine"}}
    plane.kubectl("create", "-f", "-", input=json.dumps(machine))
    cached = {"path": "/models/demo", "cache": {"pvc": "cache", "accessMode": "ReadWriteOnce"}}
    models.apply(service("cached", model=cached, scheduling={"schedulerName": "by-hand"}))
    until(lambda: models.all("pods", "--selector", "app.kubernetes.io/instance=cached"), "a pod")
    pod = pod_of(models, "cached")
    bind(plane, pod, "machine")
    said = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) other'
    happen(models, pod, "FailedAttachVolume", said, "attachdetach-controller")
    until_summary(
        models,
        "cached",
        "VolumeNotMounted: a claim for one node is mounted on another: Multi-Attach error for volume "
        '"pvc-1" Volume is already u…',
    )
    assert "name a ReadWriteMany claim." in models.condition("cached", "Ready")["message"]
