"""What stands in the way of a rollout or of an object's making is told by the service's own status."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.failing import KIND, Case, Failures, explaining
from e2e.ground.names import NODE
from e2e.ground.node import Cluster
from e2e.operators import Namespace, Object, bind, until

GPUS = {"vendor": "nvidia"}


@pytest.fixture(scope="module")
def failures(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failures]:
    cluster.patch_gpus(count=4)
    with explaining(cluster, tmp_path_factory.mktemp("rollouts")) as found:
        yield found


@pytest.fixture
def bounded(failures: Failures) -> Iterator[Failures]:
    """The same operator before a namespace of its own, for bounds that hold for all of a namespace."""
    namespace = Namespace(failures.cluster, f"bounded-{uuid.uuid4().hex[:8]}")
    yield Failures(failures.cluster, failures.operator, namespace, failures.images)
    failures.cluster.kubectl("delete", "namespace", namespace.name, "--wait=false")


def pods(failures: Failures, name: str) -> list[Object]:
    return failures.namespace.all("pods", f"-lapp.kubernetes.io/instance={name}")


def test_a_rollout_without_spare_devices_keeps_the_old_pods_and_says_which_field_to_set(
    failures: Failures,
) -> None:
    engine, surge = {"tensorParallelSize": 4}, {"maxSurge": 1}
    failures.namespace.apply(failures.service("spare", devices=GPUS, engine=engine, rollout=surge))
    failures.until_summary("spare", "Serving: .*")
    (old,) = pods(failures, "spare")
    longer = {**engine, "maxModelLen": 512}
    failures.namespace.apply(failures.service("spare", devices=GPUS, engine=longer, rollout=surge))
    failures.until_summary(
        "spare",
        "RolloutNeedsSpareDevice: a new pod wants nvidia.com/gpu 4, node has 4, not enough of it free; "
        "the old ones serve on",
    )
    progressing = failures.namespace.condition("spare", "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "RolloutNeedsSpareDevice")
    assert "Set spec.rollout.maxSurge to 0 and spec.rollout.maxUnavailable to 1" in progressing["message"]
    assert failures.namespace.condition("spare", "Available")["status"] == "True"
    assert failures.namespace.condition("spare", "Scheduled")["reason"] == "Unschedulable"
    assert old["metadata"]["name"] in [pod["metadata"]["name"] for pod in pods(failures, "spare")]
    failures.namespace.kubectl(
        *("patch", KIND, "spare", "--type=merge"),
        '--patch={"spec": {"rollout": {"maxSurge": 0, "maxUnavailable": 1}}}',
    )
    failures.until_summary("spare", "Serving: .*")
    failures.namespace.kubectl("delete", KIND, "spare")


def test_a_pod_has_a_limit_of_the_device_plugin_or_a_claim_and_never_both(failures: Failures) -> None:
    failures.namespace.apply(
        failures.service("counted", devices=GPUS),
        failures.service("claimed", devices={"vendor": "nvidia", "claims": ["one"]}),
    )
    for name, claims in (("counted", False), ("claimed", True)):
        until(lambda: pods(failures, name), f"the pod of {name}")  # noqa: B023
        (pod,) = pods(failures, name)
        resources = pod["spec"]["containers"][0]["resources"]
        assert ("nvidia.com/gpu" in resources.get("limits", {})) != claims
        assert ("nvidia.com/gpu" in resources.get("requests", {})) != claims
        assert ("claims" in resources) == claims
        assert bool(pod["spec"].get("resourceClaims")) == claims
    failures.namespace.kubectl("delete", KIND, "counted", "claimed")


def claim(failures: Failures, folder: Path, name: str, mode: str) -> Iterator[None]:
    """A claim of this mode, bound to a folder of the node."""
    folder.mkdir(mode=0o777)
    size = {"storage": "1Gi"}
    volume = f"{failures.namespace.name}-{name}"
    of_both = {"accessModes": [mode], "storageClassName": ""}
    failures.namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {**of_both, "capacity": size, "hostPath": {"path": str(folder)}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {**of_both, "resources": {"requests": size}, "volumeName": volume},
        },
    )
    yield
    failures.namespace.kubectl("delete", "persistentvolumeclaim", name)
    failures.namespace.kubectl("delete", "persistentvolume", volume)


@pytest.fixture
def for_one_node(failures: Failures, tmp_path: Path) -> Iterator[None]:
    yield from claim(failures, tmp_path / "cache", "cache", "ReadWriteOnce")


@pytest.fixture
def for_one_pod(failures: Failures, tmp_path: Path) -> Iterator[None]:
    yield from claim(failures, tmp_path / "own", "own", "ReadWriteOncePod")


@pytest.mark.usefixtures("for_one_node")
def test_a_cache_for_one_node_switches_to_recreate_and_says_why(failures: Failures) -> None:
    model = {"path": "/models/demo", "cache": {"pvc": "cache"}}
    failures.namespace.apply(failures.service("cached", model=model))
    failures.until_summary("cached", "Serving: .*")
    assert failures.namespace.the("deployment", "cached")["spec"]["strategy"] == {"type": "Recreate"}
    message = failures.namespace.condition("cached", "Progressing")["message"]
    assert "Recreate: the claim cache is ReadWriteOnce" in message
    assert "A ReadWriteMany claim, or none, lets rollouts keep serving." in message
    failures.namespace.kubectl("delete", KIND, "cached")


@pytest.mark.usefixtures("for_one_pod")
def test_a_claim_for_one_pod_is_held_by_one_and_the_other_is_told(failures: Failures) -> None:
    model = {"path": "/models/demo", "cache": {"pvc": "own"}}
    failures.namespace.apply(failures.service("first", model=model))
    failures.until_summary("first", "Serving: .*")
    failures.namespace.apply(failures.service("second", model=model))
    failures.until_summary(
        "second", "Unschedulable: another pod holds claim own, which one pod at a time can mount"
    )
    refused = {
        "several": Case(
            spec={"model": model, "replicas": 2},
            summary="InvalidSpec: spec.replicas: 2 pods cannot mount the claim own, which is .*",
            advice="Set it to 1",
            stalled=True,
        )
    }
    failures.apply(refused)
    failures.until_status("several", refused["several"])
    failures.namespace.kubectl("delete", KIND, "first")
    failures.until_summary("second", "Serving: .*")
    failures.namespace.kubectl("delete", KIND, "second", "several")


def test_an_object_of_someone_else_is_named_and_left_alone(failures: Failures) -> None:
    failures.namespace.kubectl("create", "service", "clusterip", "taken", "--tcp=80:80")
    before = failures.namespace.the("service", "taken")
    case = Case(
        summary="NameConflict: Service taken was not made by this resource and is left alone",
        advice="Give this InferenceService another name, or delete that Service.",
        stalled=True,
    )
    failures.apply({"taken": case})
    failures.until_status("taken", case)
    assert failures.namespace.the("service", "taken") == before
    failures.namespace.kubectl("delete", "service", "taken")
    failures.until_summary("taken", "Serving: .*")
    failures.namespace.kubectl("delete", KIND, "taken")


def test_a_variable_that_someone_added_is_named_while_the_service_serves(failures: Failures) -> None:
    failures.namespace.apply(failures.service("drifts"))
    failures.until_summary("drifts", "Serving: .*")
    failures.namespace.kubectl("set", "env", "deployment/drifts", "VLLM_LOGGING_LEVEL=DEBUG", "TZ=UTC")
    failures.until_summary("drifts", "Drifted: someone else added VLLM_LOGGING_LEVEL to the Deployment")
    drifted = failures.namespace.condition("drifts", "Drifted")
    assert drifted["status"] == "True"
    assert "Remove it there, and set it in spec.env." in drifted["message"]
    failures.namespace.kubectl("set", "env", "deployment/drifts", "VLLM_LOGGING_LEVEL-")
    failures.until_summary("drifts", "Serving: .*")
    failures.namespace.kubectl("delete", KIND, "drifts")


def test_a_pod_that_its_node_refuses_is_told_in_the_kubelet_s_words(failures: Failures) -> None:
    """Bound by hand to a node that is too small, as a scheduler with an old view of it would."""
    failures.namespace.apply(
        failures.service("refused", resources={"cpu": 640}, scheduling={"schedulerName": "by-hand"})
    )
    until(lambda: pods(failures, "refused"), "a pod")
    (pod,) = pods(failures, "refused")
    bind(failures.cluster, pod, NODE)
    case = Case(
        summary="NodeRefused: node ended the pod as OutOfcpu: .*",
        advice="In its place: waits for the scheduler.",
    )
    failures.until_status("refused", case)
    failures.namespace.kubectl("delete", KIND, "refused")


@pytest.mark.parametrize(
    ("bound", "case"),
    [
        (
            {"kind": "ResourceQuota", "spec": {"hard": {"limits.cpu": "1", "limits.memory": "8Gi"}}},
            Case(
                spec={"resources": {"cpu": 2, "memory": "1Gi"}},
                summary="QuotaExceeded: wants limits.cpu=2, quota small has limits.cpu=1, .* is used",
                advice="Lower spec.resources or spec.replicas, or have the quota raised.",
            ),
        ),
        (
            {"kind": "ResourceQuota", "spec": {"hard": {"limits.memory": "8Gi"}}},
            Case(summary="QuotaExceeded: .*must specify limits.memory.*", advice="Change spec.resources."),
        ),
        (
            {"kind": "LimitRange", "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}},
            Case(
                spec={"resources": {"memory": "2Gi"}},
                summary="QuotaExceeded: maximum memory usage per Container is 1Gi, but limit is 3Gi",
                advice="Change spec.resources.",
            ),
        ),
    ],
    ids=["quota", "quota-without-limits", "limit-range"],
)
def test_a_bound_of_the_namespace_is_told_with_its_values(
    bounded: Failures, bound: Object, case: Case
) -> None:
    bounded.namespace.apply({"apiVersion": "v1", "metadata": {"name": "small"}, **bound})
    bounded.apply({"demo": case})
    bounded.until_status("demo", case)
