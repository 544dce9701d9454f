"""What stands beside a server on a real node: volumes, containers, variables from the pod's own fields."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.failing import BUSYBOX, IDLE, Case, Failures, explaining
from e2e.ground.node import Cluster
from e2e.installation import RESTRICTED
from e2e.operators import Object

MOUNTED = [{"name": "shared", "mountPath": "/own"}]


def shell(script: str) -> list[str]:
    return [BUSYBOX, "sh", "-c", script]


@pytest.fixture(scope="module")
def services(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failures]:
    """A namespace that admits restricted pods only."""
    with explaining(cluster, tmp_path_factory.mktemp("beside")) as found:
        cluster.kubectl("label", "namespace", found.namespace.name, RESTRICTED)
        yield found


@pytest.fixture(scope="module")
def pod(services: Failures) -> Object:
    """Of a service whose init container writes what its sidecar and its server read."""
    image = services.images["serves"]
    writes = {
        "name": "writes",
        "image": image,
        "command": shell("echo $(WORD) > /own/word"),
        "env": [{"name": "WORD", "value": "written before"}],
        "volumeMounts": MOUNTED,
    }
    copies = {
        "name": "copies",
        "image": image,
        "command": shell(f"trap 'exit 0' TERM; {BUSYBOX} cp /own/word /own/copied; {IDLE}"),
        "volumeMounts": MOUNTED,
        "resources": {"requests": {"cpu": "10m"}},
    }
    asked = services.service(
        "beside",
        runtime={"podLabels": {"example.org/team": "search"}},
        volumes=[{"name": "shared", "mountPath": "/shared", "emptyDir": {"sizeLimit": "1Mi"}}],
        initContainers=[writes],
        sidecars=[copies],
        env=[
            {"name": "POD", "field": "metadata.name"},
            {"name": "TEAM", "field": "metadata.labels['example.org/team']"},
            {"name": "NODE", "field": "spec.nodeName"},
        ],
        scheduling={"hostAliases": [{"ip": "192.0.2.7", "hostnames": ["store.example.org"]}]},
        security={"supplementalGroups": [2000]},
    )
    services.namespace.apply(asked)
    services.until_summary("beside", "Serving: .*")
    (found,) = services.namespace.all("pods", "-l", "app.kubernetes.io/instance=beside")
    return found


def in_server(services: Failures, pod: Object, *words: str) -> str:
    name = pod["metadata"]["name"]
    return services.namespace.kubectl("exec", name, "-c", "server", "--", BUSYBOX, *words)


def test_the_server_reads_what_an_init_container_wrote_and_a_sidecar_copied(
    services: Failures, pod: Object
) -> None:
    assert in_server(services, pod, "cat", "/shared/word", "/shared/copied") == "written before\n" * 2


def test_the_sidecar_runs_as_long_as_the_server(services: Failures, pod: Object) -> None:
    states = {one["name"]: one["state"] for one in pod["status"]["initContainerStatuses"]}
    assert [next(iter(states[name])) for name in ("writes", "copies")] == ["terminated", "running"]


def test_variables_are_what_the_pod_is(services: Failures, pod: Object) -> None:
    lines = in_server(services, pod, "env").splitlines()
    assert f"POD={pod['metadata']['name']}" in lines
    assert "TEAM=search" in lines
    assert f"NODE={pod['spec']['nodeName']}" in lines


def test_the_server_knows_the_host_and_has_the_group(services: Failures, pod: Object) -> None:
    assert "192.0.2.7\tstore.example.org" in in_server(services, pod, "cat", "/etc/hosts")
    assert "2000" in in_server(services, pod, "id", "-G").split()


def test_a_sidecar_that_ends_is_told_as_the_sidecar(services: Failures) -> None:
    sidecar = {"name": "proxy", "image": services.images["ends"]}
    services.namespace.apply(services.service("broken", sidecars=[sidecar]))
    said = "CrashLoop: sidecar proxy: proxy ended with exit code 77: Out of luck.*"
    services.until_status("broken", Case(summary=said, advice="`kubectl logs --previous --container proxy`"))
