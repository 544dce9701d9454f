"""The node runs what a node should: restricted pods, Services, logs, exec, images, DNS, claimed devices."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.ground import images
from e2e.ground.children import GroundFailed
from e2e.ground.node import Cluster
from e2e.ground.patience import at_most, scaled


@pytest.fixture(scope="module")
def busybox(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("images") / "busybox.tar"
    return cluster.push(images.busybox(path, "busybox:1"), "busybox:1")


@pytest.fixture(scope="module")
def restricted(cluster: Cluster) -> Iterator[str]:
    """A namespace that admits restricted pods only."""
    name = "restricted"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    cluster.until(lambda: _exists(cluster, name), "the service account")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def web(cluster: Cluster, busybox: str, restricted: str) -> str:
    """A pod that serves one page as a restricted user, with a Service before it."""
    script = "echo serving; exec httpd -f -v -p 8080 -h /page"
    pod = _pod("web", busybox, "sh", "-c", f"echo hello > /page/index.html; {script}")
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    for document in (pod, service):
        cluster.kubectl("apply", "-n", restricted, "-f", "-", input=json.dumps(document))
    _ready(cluster, restricted, "web")
    return restricted


def test_a_node_is_ready(cluster: Cluster) -> None:
    node = json.loads(cluster.kubectl("get", "node", "node", "-o", "json"))
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")


def test_a_restricted_pod_runs_an_image_from_the_registry(cluster: Cluster, web: str) -> None:
    pod = json.loads(cluster.kubectl("get", "-n", web, "pod", "web", "-o", "json"))
    status = pod["status"]["containerStatuses"][0]
    assert status["image"].startswith("127.0.0.1:5000/busybox")
    assert "uid=1234" in cluster.kubectl("exec", "-n", web, "web", "--", "id")


def test_logs_come_from_the_node(cluster: Cluster, web: str) -> None:
    assert "serving" in cluster.kubectl("logs", "-n", web, "web")


def test_a_service_is_reachable_by_its_address(cluster: Cluster, web: str) -> None:
    address = cluster.kubectl("get", "-n", web, "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    _soon(lambda: cluster.fetch(f"http://{address}/") == b"hello\n")


def test_a_service_is_reachable_by_its_name(cluster: Cluster, web: str) -> None:
    cluster.start_dns()
    name = f"http://web.{web}.svc.cluster.local/"
    fetch = ("exec", "-n", web, "web", "--", "timeout", "5", "wget", "-q", "-O-")
    _soon(lambda: cluster.kubectl(*fetch, name) == "hello\n")


def test_a_client_in_this_process_can_enter_the_network(cluster: Cluster, web: str) -> None:
    address = cluster.kubectl("get", "-n", web, "pod", "web", "-o", "jsonpath={.status.podIP}")
    assert cluster.fetch(f"http://{address}:8080/") == b"hello\n"


def test_memory_over_the_limit_is_an_oom_kill(cluster: Cluster, busybox: str, restricted: str) -> None:
    pod = _pod("hungry", busybox, "tail", "/dev/zero")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "32Mi"}}
    cluster.kubectl("apply", "-n", restricted, "-f", "-", input=json.dumps(pod))
    path = "jsonpath={.status.containerStatuses[0].state.terminated.reason}"
    _soon(lambda: cluster.kubectl("get", "-n", restricted, "pod", "hungry", "-o", path) == "OOMKilled")


def test_claimed_devices_are_counted(cluster: Cluster, busybox: str, restricted: str) -> None:
    cluster.patch_gpus("nvidia.com/gpu", 1)
    path = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}"
    message = ("get", "-n", restricted, "pod", "second", "-o", path)
    try:
        for name in ("first", "second"):
            pod = _pod(name, busybox, "sleep", "1000")
            pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
            cluster.kubectl("apply", "-n", restricted, "-f", "-", input=json.dumps(pod))
            if name == "first":
                _ready(cluster, restricted, name)
        _soon(lambda: "Insufficient nvidia.com/gpu" in cluster.kubectl(*message))
    finally:
        cluster.patch_gpus("nvidia.com/gpu", 0)


def test_an_image_of_the_builder_is_pushed_by_its_name(cluster: Cluster, restricted: str) -> None:
    name = f"localhost/{cluster.name}/built:1"
    working = cluster.must("buildah", "from", "scratch").strip()
    try:
        cluster.must("buildah", "copy", working, "/bin/busybox", "/bin/busybox")
        cluster.must("buildah", "commit", "--quiet", working, name)
        image = cluster.push(name)
    finally:
        cluster.must("buildah", "rm", working)
        cluster.run("buildah", "rmi", name, capture_output=True)
    assert image == f"127.0.0.1:5000/{cluster.name}/built:1"
    pod = _pod("built", image, "/bin/busybox", "true")
    cluster.kubectl("apply", "-n", restricted, "-f", "-", input=json.dumps(pod))
    phase = "jsonpath={.status.phase}"
    _soon(lambda: cluster.kubectl("get", "-n", restricted, "pod", "built", "-o", phase) == "Succeeded")


def _pod(name: str, image: str, *command: str) -> dict[str, Any]:
    container = {
        "name": "only",
        "image": image,
        "command": list(command),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "page", "mountPath": "/page"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1234,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "page", "emptyDir": {}}],
        },
    }


def _ready(cluster: Cluster, namespace: str, pod: str) -> None:
    cluster.kubectl("wait", "-n", namespace, f"pod/{pod}", "--for=condition=Ready", at_most(120))


def _exists(cluster: Cluster, namespace: str) -> bool:
    return "default" in cluster.kubectl("get", "serviceaccounts", "-n", namespace, "-o", "name")


def _soon(holds: Callable[[], bool], patience: float = 60) -> None:
    """Poll until it holds; a command that fails meanwhile is an answer of no."""
    end = time.monotonic() + scaled(patience)
    while True:
        try:
            if holds():
                return
            seen = "it does not hold"
        except (GroundFailed, OSError) as failure:
            seen = str(failure)
        assert time.monotonic() < end, seen
        time.sleep(0.1)
