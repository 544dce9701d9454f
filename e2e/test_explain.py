"""Failures of a real scheduler, kubelet and admission chain, and the words that we have for them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.ground import images
from e2e.ground.node import Cluster
from slipway.exits import MODEL_NOT_FOUND, termination
from slipway_operator.explain import pods_summary
from slipway_operator.reasons import Finding

Object = dict[str, Any]

NAMESPACE = "explain"
CAUSE = termination(MODEL_NOT_FOUND.code, "There is no model org/nope on the hub.").decode()
PATIENCE = 90.0
OF_CONTAINER = ("env", "resources", "livenessProbe", "readinessProbe", "volumeMounts")


def pod(image: str, *command: str, **more: Any) -> Object:
    container = {"name": "server", "image": image, "command": list(command)}
    container |= {key: more.pop(key) for key in OF_CONTAINER if key in more}
    return {"containers": [container], "terminationGracePeriodSeconds": 1, **more}


Failure = tuple[Object, str, str]
"""A pod's spec, the reason that it is to have, and a part of the message."""


def failures(image: str) -> dict[str, Failure]:
    return {**without_a_node(image), **before_the_start(image), **after_the_start(image)}


def without_a_node(image: str) -> dict[str, Failure]:
    return {
        "devices": (
            pod(image, "sleep", "9", resources={"limits": {"nvidia.com/gpu": "8"}}),
            "Unschedulable",
            "wants nvidia.com/gpu 8, node has 4. ",
        ),
        "selector": (
            pod(image, "sleep", "9", nodeSelector={"a": "b"}),
            "Unschedulable",
            "spec.scheduling.nodeSelector",
        ),
        "claim": (
            pod(image, volumes=[{"name": "x", "persistentVolumeClaim": {"claimName": "weights"}}]),
            "ClaimMissing",
            '"weights" not found',
        ),
        "account": (
            pod(image, "sleep", "9", serviceAccountName="nobody"),
            "PodsNotCreated",
            '"nobody" not found',
        ),
    }


def before_the_start(image: str) -> dict[str, Failure]:
    secret = {"secretKeyRef": {"name": "hub", "key": "token"}}
    tls = {"name": "tls", "secret": {"secretName": "cert"}}
    return {
        "image": (
            pod("127.0.0.1:5000/nope:1"),
            "ImageNotFound",
            "127.0.0.1:5000/nope:1 is not in its registry",
        ),
        "model-image": (
            pod(
                image,
                volumes=[{"name": "model", "image": {"reference": "127.0.0.1:5000/model:9"}}],
                volumeMounts=[{"name": "model", "mountPath": "/model"}],
            ),
            "ImageNotFound",
            "Correct spec.model.image.reference",
        ),
        "variable": (
            pod(image, env=[{"name": "T", "valueFrom": secret}]),
            "SecretMissing",
            "Secret hub does not exist",
        ),
        "volume": (
            pod(image, volumes=[tls], volumeMounts=[{"name": "tls", "mountPath": "/tls"}]),
            "SecretMissing",
            "Secret cert does not exist",
        ),
        "command": (pod(image, "/bin/nothing"), "ContainerRefused", "/bin/nothing"),
    }


def after_the_start(image: str) -> dict[str, Failure]:
    last = "echo '" + CAUSE + "' > /dev/termination-log; exit 10"
    limits = {"limits": {"memory": "32Mi"}}
    grow = "a=x; while true; do a=$a$a$a; done"
    probe = {"exec": {"command": ["sh", "-c", "exit 1"]}, "periodSeconds": 1, "failureThreshold": 1}
    fetch = {"name": "fetch", "image": image, "command": ["sh", "-c", last]}
    return {
        "cause": (pod(image, "sh", "-c", last), "ModelNotFound", "There is no model org/nope on the hub."),
        "fetch": (
            pod(image, "sleep", "9", initContainers=[fetch]),
            "ModelNotFound",
            "init container fetch: There is no model",
        ),
        "memory": (
            pod(image, "sh", "-c", grow, resources=limits),
            "OutOfMemory",
            "killed at its limit of 32Mi",
        ),
        "crash": (pod(image, "sh", "-c", "exit 77"), "CrashLoop", "server ended with exit code 77"),
        "probe": (
            pod(
                image,
                "sh",
                "-c",
                "trap 'exit 0' TERM; while true; do sleep 0.1; done",
                livenessProbe=probe,
                readinessProbe=probe,
            ),
            "Unresponsive",
            "its liveness probe fails",
        ),
    }


NAMES = tuple(failures(""))


@pytest.fixture(scope="module")
def failing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One Deployment for each failure, all failing at once."""
    path = tmp_path_factory.mktemp("images") / "busybox.tar"
    image = cluster.push(images.busybox(path, "busybox:1"), "busybox:1")
    cluster.patch_gpus(count=4)
    cluster.kubectl("create", "namespace", NAMESPACE)
    wanted = {name: spec for name, (spec, _, _) in failures(image).items()}
    documents = [deployment(name, spec) for name, spec in wanted.items()]
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(listed))
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def deployment(name: str, spec: Object, namespace: str = NAMESPACE) -> Object:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def explained(cluster: Cluster, name: str, namespace: str = NAMESPACE) -> Finding | None:
    def listed(kind: str, *flags: str) -> list[Object]:
        printed = cluster.kubectl("get", kind, "-n", namespace, "-o", "json", *flags)
        items: list[Object] = json.loads(printed)["items"]
        return items

    mine = f"-lapp={name}"
    found = json.loads(cluster.kubectl("get", "deployment", name, "-n", namespace, "-o", "json"))
    return pods_summary(
        listed("pods", mine), listed("events"), listed("replicasets", mine), found, listed("nodes")
    )


def until_explained(cluster: Cluster, name: str, reason: str, part: str, namespace: str = NAMESPACE) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = explained(cluster, name, namespace)
        if found is not None and found.reason == reason and part in found.message:
            return
        assert time.monotonic() < deadline, f"{name}: {found} is not {reason}: {part}"
        time.sleep(0.5)


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_is_told_by_its_cause(failing: Cluster, name: str) -> None:
    _, reason, part = failures("")[name]
    until_explained(failing, name, reason, part)


def test_a_quota_and_pod_security_are_told_by_name(failing: Cluster) -> None:
    for namespace in ("quota", "restricted-pods"):
        failing.kubectl("create", "namespace", namespace)
    failing.kubectl("create", "quota", "small", "-n", "quota", "--hard=limits.cpu=1")
    failing.kubectl("label", "namespace", "restricted-pods", "pod-security.kubernetes.io/enforce=restricted")
    wants = pod("x", resources={"limits": {"cpu": "2"}})
    listed = [deployment("big", wants, "quota"), deployment("free", pod("x"), "restricted-pods")]
    failing.kubectl(
        "apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": listed})
    )
    until_explained(
        failing, "big", "QuotaExceeded", "wants limits.cpu=2, quota small has limits.cpu=1", "quota"
    )
    until_explained(failing, "free", "AdmissionRefused", "violates PodSecurity", "restricted-pods")
    for namespace in ("quota", "restricted-pods"):
        failing.kubectl("delete", "namespace", namespace, "--wait=false")
