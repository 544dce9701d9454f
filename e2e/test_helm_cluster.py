"""The operator's chart on a whole cluster: its pods run under the restricted level, `helm test` passes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.ground.node import Cluster
from e2e.helm.command import OPERATOR_CHART, Helm, run_in
from e2e.images.build import build, missing

PLACE = ("--namespace", "slipway-system")


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Iterator[Cluster]:
    """With a namespace for the operator that admits restricted pods only."""
    cluster.kubectl("create", "namespace", "slipway-system")
    cluster.kubectl("label", "namespace", "slipway-system", "pod-security.kubernetes.io/enforce=restricted")
    yield cluster
    cluster.kubectl("delete", "namespace", "slipway-system")


@pytest.fixture(scope="module")
def dns(cluster: Cluster) -> None:
    """By which the pod of `helm test` finds the operator's Service."""
    cluster.start_dns()


@pytest.fixture(scope="module")
def repository(cluster: Cluster) -> tuple[str, str]:
    """The operator's image in the cluster's registry: its name and its tag."""
    if reason := missing():
        pytest.skip(reason)
    name, _, tag = cluster.push(build("operator"), "slipway/operator:test").rpartition(":")
    return name, tag


@pytest.fixture(params=["helm", "helm3"])
def helm(request, binaries, cluster, tmp_path) -> Iterator[Helm]:
    command = Helm(binaries[request.param], tmp_path, run_in(cluster))
    yield command
    command("uninstall", "slipway", *PLACE, "--wait")
    cluster.kubectl("delete", "crd", "inferenceservices.slipway.dev")


def settings(repository: tuple[str, str], *more: str) -> tuple[str, str]:
    name, tag = repository
    registry, _, rest = name.partition("/")
    values = {"registry": registry, "image.repository": rest, "image.tag": tag, "imagePullPolicy": "Always"}
    return "--set", ",".join([*(f"{key}={item}" for key, item in values.items()), *more])


def pods(cluster: ControlPlane) -> list[dict]:
    listed = cluster.kubectl(
        "get", "pods", *PLACE, "-l", "app.kubernetes.io/name=slipway-operator", "-o", "json"
    )
    return json.loads(listed)["items"]


def test_an_installation_that_waits_ends_with_a_ready_operator_and_helm_test_passes(
    helm, cluster, repository
):
    helm("install", "slipway", OPERATOR_CHART, *PLACE, "--wait", "--timeout=2m", *settings(repository))
    (pod,) = pods(cluster)
    assert [one["status"] for one in pod["status"]["conditions"] if one["type"] == "Ready"] == ["True"]
    said = helm("test", "slipway", *PLACE, "--timeout=2m")
    assert "Succeeded" in said


def test_an_upgrade_replaces_the_operator_without_a_gap_and_two_may_run(helm, cluster, repository):
    helm("install", "slipway", OPERATOR_CHART, *PLACE, "--wait", "--timeout=2m", *settings(repository))
    more = settings(repository, "replicas=2", "logFormat=text")
    helm("upgrade", "slipway", OPERATOR_CHART, *PLACE, "--wait", "--timeout=2m", *more)
    cluster.kubectl("rollout", "status", "deployment/slipway-operator", *PLACE, "--timeout=60s")
    assert all(one["status"]["containerStatuses"][0]["restartCount"] == 0 for one in pods(cluster))
