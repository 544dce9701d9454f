"""Before a rollout a pod without devices asks whether the model fits those that the labels of nodes name."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.failing import KIND
from e2e.ground.names import NODE
from e2e.ground.node import Cluster
from e2e.images.release import Released
from e2e.operators import Namespace, Object, Operator, define, fresh_namespace, service, undefine, until
from e2e.published_models import PUBLISHED, beyond, engine_of
from slipway.fit import devices
from slipway.service.fields import camel

GPU = "nvidia.com/gpu"
SLOW = "qwen3-235b-a22b-fp8-tp4-h100"
"""Planned in minutes where cores are few: its experts are many."""
DEVICES = sorted({str(document["device"]) for document in PUBLISHED.values()})
FACTS = ("product", "memory", "count", "compute.major", "compute.minor")


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster, released: Released, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """It may see nodes, the only one of which claims devices; what would need a GPU gets the CPU's image."""
    define(cluster)
    cluster.patch_gpus(count=8)
    facts = {"cudaImage": released.runtime, "cpuImage": released.runtime}
    name = f"fits-{uuid.uuid4().hex[:8]}"
    running = Operator(cluster, tmp_path_factory.mktemp("fits"), name, facts=facts)
    try:
        running.wait_active()
        yield running
        assert running.forbidden() == set()
        assert "Traceback" not in running.log.read_text(), running.log.read_text()
    finally:
        running.stop()
        label(cluster, None)
        cluster.patch_gpus(count=0)
        undefine(cluster)


@pytest.fixture
def models(cluster: Cluster, operator: Operator) -> Iterator[Namespace]:
    with fresh_namespace(cluster, "fits") as namespace:
        yield namespace
        namespace.kubectl("delete", KIND, "--all")


def label(cluster: Cluster, device: str | None) -> None:
    """What NVIDIA's GPU feature discovery says of the node; None: nothing."""
    fact = next((fact for fact in devices.FACTS if fact.name == device), None)
    facts = {} if fact is None else {
        "product": f"NVIDIA-{fact.name.replace(' ', '-')}",
        "memory": str(fact.mib),
        "count": "8",
        "compute.major": str(fact.arch // 10),
        "compute.minor": str(fact.arch % 10),
    }  # fmt: skip
    labels = {f"{GPU}.{name}": facts.get(name) for name in FACTS}
    patch = json.dumps({"metadata": {"labels": labels}})
    cluster.kubectl("patch", "node", NODE, "--type=merge", f"--patch={patch}")


def of_document(models: Namespace, name: str, suffix: str, engine: dict[str, Any]) -> Object:
    """A service of the model whose configuration a ConfigMap has."""
    files = {"config.json": json.dumps(PUBLISHED[name]["config"])}
    named = f"{name.replace('.', '-')}-{suffix}"
    models.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": named}, "data": files})
    return service(
        named,
        model={"path": "/models/published"},
        files=[{"configMap": named, "mountPath": "/models/published"}],
        devices={"vendor": "nvidia"},
        engine={camel(key): value for key, value in engine.items()},
        resources={"cpu": "100m", "memory": "1Gi"},
    )


def summary(models: Namespace, name: str) -> str:
    return str((models.the(KIND, name).get("status") or {}).get("summary"))


def until_refused(models: Namespace, name: str) -> None:
    until(lambda: summary(models, name).startswith("NoDeviceFits: "), lambda: summary(models, name))


def until_rolled_out(models: Namespace, name: str) -> None:
    until(lambda: models.get("deployment", name), lambda: summary(models, name))


@pytest.mark.parametrize("device", DEVICES)
def test_what_documents_run_is_rolled_out_and_what_is_beyond_it_is_not_scheduled(
    cluster: Cluster, models: Namespace, device: str
) -> None:
    label(cluster, device)
    names = [name for name, document in PUBLISHED.items() if document["device"] == device and name != SLOW]
    for name in names:
        models.apply(of_document(models, name, "fits", engine_of(PUBLISHED[name])))
        models.apply(of_document(models, name, "beyond", beyond(PUBLISHED[name])))
    for name in (name.replace(".", "-") for name in names):
        refused, fits = f"{name}-beyond", f"{name}-fits"
        until_refused(models, refused)
        until_rolled_out(models, fits)
        found = models.condition(refused, "Fits")
        assert found["status"] == "False"
        assert f"NVIDIA-{device.replace(' ', '-')}" in found["message"]
        assert "It would fit with spec.engine." in found["message"]
        assert models.condition(refused, "Stalled")["reason"] == "NoDeviceFits"
        assert models.get("deployment", refused) is None
        (asked,) = models.all("pods", f"-lapp.kubernetes.io/instance={refused}")
        (container,) = asked["spec"]["containers"]
        assert GPU not in container["resources"]["limits"]


def test_what_would_fit_does_and_what_runs_runs_on(cluster: Cluster, models: Namespace) -> None:
    label(cluster, "H100 80GB")
    name = "llama-3-8b-h100"
    too_long = of_document(models, name, "edited", beyond(PUBLISHED[name]))
    named = too_long["metadata"]["name"]
    models.apply(of_document(models, name, "edited", {}))
    until_rolled_out(models, named)
    template = models.the("deployment", named)["spec"]["template"]
    until(lambda: not asking(models, named), "the pod that asked is gone")
    models.apply(too_long)
    until_refused(models, named)
    assert models.the("deployment", named)["spec"]["template"] == template
    suspended = {"spec": {"suspend": True}}
    models.kubectl("patch", KIND, named, "--type=merge", f"--patch={json.dumps(suspended)}")
    until(lambda: models.the("deployment", named)["spec"]["replicas"] == 0, "it is suspended all the same")
    assert models.the("deployment", named)["spec"]["template"] == template
    found = re.search(
        r"It would fit with spec.engine.maxModelLen: (\d+)", models.condition(named, "Fits")["message"]
    )
    assert found is not None
    longest = found[1]
    patch = {"spec": {"suspend": False, "engine": {"maxModelLen": int(longest)}}}
    models.kubectl("patch", KIND, named, "--type=merge", f"--patch={json.dumps(patch)}")

    def arguments() -> list[str]:
        (container,) = models.the("deployment", named)["spec"]["template"]["spec"]["containers"]
        return list(container["args"])

    until(lambda: longest in arguments(), lambda: summary(models, named))


def asking(models: Namespace, name: str) -> list[Object]:
    pods = models.all("pods", f"-lapp.kubernetes.io/instance={name}")
    return [pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-fit-")]


def test_nobody_is_asked_where_the_document_says_so_and_a_quota_holds_nothing_up(
    cluster: Cluster, models: Namespace, operator: Operator
) -> None:
    label(cluster, "H100 80GB")
    name = "llama-3-8b-h100"
    unasked = of_document(models, name, "unasked", beyond(PUBLISHED[name]))
    unasked["spec"]["rollout"] = {"fit": "Off"}
    models.apply(unasked)
    named = unasked["metadata"]["name"]
    until_rolled_out(models, named)
    assert not asking(models, named)
    strange = of_document(models, name, "strange", beyond(PUBLISHED[name]))
    strange["spec"]["service"] = {"from": []}
    named = strange["metadata"]["name"]
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": named}}
    models.apply({**policy, "spec": {"podSelector": {}, "policyTypes": []}}, strange)
    until_rolled_out(models, named)
    assert f"{models.name}/{named}: rolling out unasked: NetworkPolicy {named}" in operator.log.read_text()
    models.kubectl("create", "quota", "none", "--hard=pods=0")
    until(lambda: models.the("quota", "none").get("status", {}).get("hard"), "the quota counts")
    bounded = of_document(models, name, "bounded", beyond(PUBLISHED[name]))
    models.apply(bounded)
    named = bounded["metadata"]["name"]
    until_rolled_out(models, named)
    assert f"{models.name}/{named}: rolling out unasked: " in operator.log.read_text()
