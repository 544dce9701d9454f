"""The operator's chart on a whole cluster: its pods run under the restricted level, `helm test` passes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.ground.control_plane import ControlPlane
from e2e.ground.node import Cluster
from e2e.ground.patience import at_most, scaled
from e2e.helm.command import OPERATOR_CHART, Helm, run_in
from e2e.images.build import build, missing
from e2e.operators import undefine, until
from slipway import __version__

PLACE = ("--namespace", "operator-of-a-chart")
PATIENCE = ("--wait", at_most(120))
DEPLOYMENT = "deployment/slipway-operator"


@pytest.fixture(scope="module")
def place(cluster: Cluster) -> Iterator[Cluster]:
    """With a namespace that admits restricted pods only, and the operator's image by its released name."""
    if reason := missing():
        pytest.skip(reason)
    cluster.start_dns()
    cluster.push(build("operator"), f"slipway/operator:{__version__}")
    cluster.kubectl("create", "namespace", PLACE[1])
    cluster.kubectl("label", "namespace", PLACE[1], "pod-security.kubernetes.io/enforce=restricted")
    yield cluster
    cluster.kubectl("delete", "namespace", PLACE[1])


@pytest.fixture(params=["helm", "helm3"])
def helm(request, binaries, place, tmp_path) -> Iterator[Helm]:
    command = Helm(binaries[request.param], tmp_path, run_in(place))
    yield command
    command("uninstall", "slipway", *PLACE, "--wait", "--ignore-not-found")
    undefine(place)


def pods(plane: ControlPlane) -> list[dict]:
    """The operator's, without those that are ending."""
    named = ("-l", "app.kubernetes.io/name=slipway-operator")
    listed = json.loads(plane.kubectl("get", "pods", *PLACE, *named, "-o", "json"))["items"]
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


def is_ready(pod: dict) -> bool:
    return any((one["type"], one["status"]) == ("Ready", "True") for one in pod["status"]["conditions"])


def test_an_installation_that_waits_ends_with_a_ready_operator_and_helm_test_passes(helm, place):
    helm("install", "slipway", OPERATOR_CHART, *PLACE, *PATIENCE)
    (pod,) = pods(place)
    assert is_ready(pod)
    said = helm("test", "slipway", *PLACE, at_most(120))
    assert "Succeeded" in said


def test_an_installation_that_waits_fails_where_the_operator_does_not_become_ready(helm):
    soon = ("--wait", "--timeout=3s")
    assert helm.refusal("install", "slipway", OPERATOR_CHART, *PLACE, *soon, "--set", "image.tag=none-such")
    assert [release["status"] for release in helm.releases()] == ["failed"]


def test_an_upgrade_leaves_no_moment_without_a_ready_operator_and_two_may_run(helm, place, tmp_path):
    helm("install", "slipway", OPERATOR_CHART, *PLACE, *PATIENCE)
    (before,) = pods(place)
    column = ("--output=jsonpath={.status.readyReplicas}{'\\n'}", "--watch")
    with (tmp_path / "ready").open("w+") as seen:
        watch = place.popen(place.binaries["kubectl"], "get", DEPLOYMENT, *PLACE, *column, stdout=seen)
        until(lambda: (tmp_path / "ready").read_text(), "the watch")
        digest = before["status"]["containerStatuses"][0]["imageID"].partition("@")[2]
        values = f"replicas=2,logFormat=text,registry={place.registry},image.digest={digest}"
        helm("upgrade", "slipway", OPERATOR_CHART, *PLACE, *PATIENCE, "--set", values)
        after = until(lambda: len(pods(place)) == 2 and pods(place), "the end of the old pod")
        watch.terminate()
        watch.wait(scaled(10))
        seen.seek(0)
        assert set(seen.read().split("\n")[:-1]) <= {"1", "2", "3"}
    assert {pod["spec"]["containers"][0]["image"] for pod in after} == {
        f"{place.registry}/slipway/operator@{digest}"
    }
    assert all(is_ready(pod) and not pod["status"]["containerStatuses"][0]["restartCount"] for pod in after)
    until(lambda: one_holds_the_lease(place), "a holder of the Lease among the two")


def one_holds_the_lease(plane: ControlPlane) -> bool:
    """A Lease that the old pod gave back is taken at the next look."""
    holder = plane.kubectl(
        "get", "lease", "slipway-operator", *PLACE, "-o", "jsonpath={.spec.holderIdentity}"
    )
    return any(holder.startswith(pod["metadata"]["name"]) for pod in pods(plane))
