"""Each failure of scheduler, admission, registry and kubelet is told by the service's own status."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.failing import Case, Failures, explaining
from e2e.ground.names import NODE
from e2e.ground.node import Cluster
from e2e.operators import Object

LOOPBACK = "127.0.0.1:5000"
DRIVER = "gpu.example.com"


def devices(vendor: str = "nvidia", **more: object) -> Object:
    return {"vendor": vendor, **more}


WITHOUT_A_NODE = {
    "eight-of-four": Case(
        spec={"devices": devices(count=8), "engine": {"tensorParallelSize": 8}},
        summary="Unschedulable: wants nvidia.com/gpu 8, node has 4",
    ),
    "busy-devices": Case(
        spec={"devices": devices()},
        summary="Unschedulable: wants nvidia.com/gpu 1, node has 4, not enough of it free",
    ),
    "mig": Case(
        spec={"devices": devices(profile="1g.10gb")},
        summary="Unschedulable: wants nvidia.com/mig-1g.10gb 1, no node has any",
    ),
    "amd": Case(
        spec={"devices": devices("amd")},
        summary="Unschedulable: wants amd.com/gpu 1, no node has any",
    ),
    "intel": Case(
        spec={"devices": devices("intel")},
        summary="Unschedulable: wants gpu.intel.com/i915 1, no node has any",
    ),
    "memory": Case(
        spec={"resources": {"memory": "500Gi"}},
        summary=r"Unschedulable: wants memory 501Gi \(1Gi of it /dev/shm\), node has [\d.]+Gi",
    ),
    "cpu": Case(
        spec={"resources": {"cpu": 640}, "rollout": {"progressDeadlineSeconds": 20}},
        summary=r"Unschedulable: wants cpu 640, node has \d+",
        stalled=True,
    ),
    "selector": Case(
        spec={"scheduling": {"nodeSelector": {"zone": "moon"}}},
        summary="Unschedulable: none of 1 node fits: 1 node.s. didn't match Pod's node affinity/selector",
        advice="Change spec.scheduling.nodeSelector or affinity, or label a node.",
    ),
    "claim": Case(
        spec={"model": {"pvc": {"name": "weights", "path": "model"}}},
        summary="ClaimMissing: PersistentVolumeClaim weights does not exist",
        advice="correct its name in spec.model.pvc",
    ),
    "device-claim": Case(
        spec={"devices": devices(claims=["eight"]), "engine": {"tensorParallelSize": 8}},
        summary="Unschedulable: wants the devices of claim eight, and no node has them free",
    ),
    "device-template": Case(
        spec={"devices": devices(claims=["nowhere"])},
        summary="ClaimMissing: ResourceClaimTemplate nowhere does not exist",
        advice="correct its name in spec.devices.claims",
    ),
}
WITHOUT_A_POD = {
    "account": Case(
        spec={"runtime": {"serviceAccountName": "nobody"}},
        summary="PodsNotCreated: ServiceAccount nobody does not exist",
        advice="correct spec.runtime.serviceAccountName",
    ),
    "priority": Case(
        spec={"scheduling": {"priorityClassName": "urgent"}},
        summary="PodsNotCreated: PriorityClass urgent does not exist",
        advice="correct spec.scheduling.priorityClassName",
    ),
    "policy": Case(
        spec={"runtime": {"podLabels": {"team": "unknown"}}},
        summary="AdmissionRefused: the policy known-teams refuses the pod: no team of ours",
    ),
    "frozen": Case(
        summary="AdmissionRefused: the policy known-teams refuses Deployment frozen: no team of ours",
    ),
    "code": Case(
        spec={"engine": {"trustRemoteCode": True}},
        summary="PolicyDenied: spec.engine.trustRemoteCode: the policy admits nothing that runs code or "
        "reads files in the server",
        advice="policy.allowCode",
        stalled=True,
    ),
}
BEFORE_THE_START = {
    "image": Case(
        spec={"runtime": {"image": f"{LOOPBACK}/nope:1"}},
        summary=f"ImageNotFound: {LOOPBACK}/nope:1 is not in its registry",
        advice="Correct spec.runtime.image",
        stalled=True,
    ),
    "registry": Case(
        spec={"runtime": {"image": "127.0.0.1:5999/runtime:1"}},
        summary="ImagePullFailed: 127.0.0.1:5999/runtime:1 cannot be pulled: dial tcp .*: connection refused",
    ),
    "model-image": Case(
        spec={"model": {"image": {"reference": f"{LOOPBACK}/model:9"}}},
        summary=f"ImageNotFound: {LOOPBACK}/model:9 is not in its registry",
        advice="Correct spec.model.image.reference",
        stalled=True,
    ),
    "secret": Case(
        spec={"secrets": {"hubToken": {"name": "hub", "key": "token"}}},
        summary="SecretMissing: Secret hub does not exist",
        advice="Create it, or correct the name in the spec.",
    ),
    "secret-key": Case(
        spec={"secrets": {"apiKey": {"name": "keys", "key": "api"}}},
        summary="SecretMissing: Secret keys has no key api",
    ),
    "certificate": Case(
        spec={"secrets": {"tls": {"name": "cert"}}},
        summary="SecretMissing: Secret cert does not exist",
    ),
    "variable": Case(
        spec={"env": [{"name": "TZ", "configMap": {"name": "zones", "key": "home"}}]},
        summary="ConfigMapMissing: ConfigMap zones does not exist",
    ),
    "file": Case(
        spec={"files": [{"mountPath": "/etc/template", "configMap": "templates"}]},
        summary="ConfigMapMissing: ConfigMap templates does not exist",
    ),
    "device-driver": Case(
        spec={"devices": devices(claims=["one"])},
        summary=f"ContainerRefused: the node cannot prepare the claimed devices: DRA driver {DRIVER} .*",
    ),
    "command": Case(
        program="nothing",
        summary='ContainerRefused: the container cannot start: exec: "/bin/nothing": .*',
    ),
}
AFTER_THE_START = {
    "memory-limit": Case(
        program="grows",
        spec={"resources": {"memory": "31Mi", "sharedMemory": "1Mi"}},
        summary="OutOfMemory: killed at its limit of 32Mi",
        advice="Raise spec.resources.memory",
        stalled=True,
    ),
    "crash": Case(
        program="ends",
        summary="CrashLoop: server ended with exit code 77: Out of luck",
        advice="`kubectl logs --previous`",
    ),
    "fetch": Case(
        program="ends",
        spec={"model": {"s3": {"uri": "s3://models/demo"}}},
        summary="CrashLoop: init container fetch: fetch ended with exit code 77: Out of luck",
    ),
    "evicted": Case(
        program="fills",
        spec={"model": {"path": "/models/demo", "cache": {"size": "4Mi"}}},
        summary='NodeRefused: node ended the pod as Evicted: Usage of EmptyDir volume "cache" exceeds .*',
        advice="Raise spec.model.cache.size.",
    ),
    "probe": Case(
        program="falls-silent",
        summary="Unresponsive: the kubelet restarts server because its liveness probe fails",
    ),
}
CASES = {**WITHOUT_A_NODE, **WITHOUT_A_POD, **BEFORE_THE_START, **AFTER_THE_START}


def admission(namespace: str) -> list[Object]:
    """A policy that refuses one team's pods, and Deployments of one name, in this namespace."""
    group = "admissionregistration.k8s.io/v1"
    rules = [
        {"apiGroups": [group], "apiVersions": ["v1"], "resources": [plural], "operations": ["CREATE"]}
        for group, plural in (("", "pods"), ("apps", "deployments"))
    ]
    policy = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [
            {
                "expression": "object.metadata.?labels[?'team'].orValue('') != 'unknown' "
                "&& object.metadata.?name.orValue('') != 'frozen'",
                "message": "no team of ours",
            }
        ],
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {"policyName": "known-teams", "validationActions": ["Deny"], "matchResources": here}
    kind = "ValidatingAdmissionPolicy"
    return [
        {"apiVersion": group, "kind": kind, "metadata": {"name": "known-teams"}, "spec": policy},
        {"apiVersion": group, "kind": f"{kind}Binding", "metadata": {"name": "known-teams"}, "spec": binding},
    ]


def claimable() -> list[Object]:
    """Two devices of the node, and templates for one and for eight. Their driver is not there."""

    def resource(kind: str, name: str, **spec: object) -> Object:
        return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}

    def template(name: str, count: int) -> Object:
        exactly = {"deviceClassName": DRIVER, "count": count}
        wanted = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        return resource("ResourceClaimTemplate", name, spec=wanted)

    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    return [
        resource("DeviceClass", DRIVER, selectors=[{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]),
        resource(
            "ResourceSlice", "slice", driver=DRIVER, nodeName=NODE, pool=pool,
            devices=[{"name": "gpu-0"}, {"name": "gpu-1"}],
        ),
        template("one", 1),
        template("eight", 8),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def failures(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failures]:
    """All of them at once, beside a service that holds the node's four devices."""
    cluster.patch_gpus(count=4)
    with explaining(cluster, tmp_path_factory.mktemp("failures")) as found:
        objects = [*admission(found.namespace.name), *claimable()]
        found.namespace.kubectl("create", "secret", "generic", "keys", "--from-literal=other=1")
        holder = found.service("holds-four", devices=devices(), engine={"tensorParallelSize": 4})
        found.namespace.apply(*objects, holder)
        found.until_summary("holds-four", "Serving: .*")
        found.apply(CASES)
        yield found
        for thing in reversed(objects):
            found.namespace.kubectl("delete", thing["kind"], thing["metadata"]["name"])


@pytest.mark.parametrize("name", CASES)
def test_a_failure_is_told_in_one_line_with_what_to_do(failures: Failures, name: str) -> None:
    failures.until_status(name, CASES[name])
