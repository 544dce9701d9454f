"""What `slipway diff` says of an edit before it is applied is what comes of it in a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.ground.control_plane import ControlPlane
from e2e.operators import Namespace, Object, Operator, defined, fresh_namespace, service, until

REVISION = "deployment.kubernetes.io/revision"
KINDS = {"Deployment", "Service", "PodDisruptionBudget"}
EDITS: tuple[Object, ...] = (
    {"replicas": 2},
    {"engine": {"maxModelLen": 512}},
    {"engine": {"maxModelLen": 512, "allowCredentials": False}, "env": [{"name": "TZ", "value": "UTC"}]},
    {"engine": {"maxModelLen": 512}, "env": [{"name": "TZ", "value": "UTC"}], "replicas": 3},
    {"env": [{"name": "A", "value": ""}, {"name": "B", "value": "1"}], "resources": {"cpu": "1000m"}},
    {"env": [{"name": "B", "value": "1"}, {"name": "A", "value": ""}], "resources": {"cpu": 1}},
    {
        "env": [{"name": "A", "value": ""}, {"name": "B", "value": "1"}],
        "resources": {"cpu": 1},
        "engine": {"allowCredentials": False},
        "replicas": 2,
    },
    {"rollout": {"template": "Latest"}, "engine": {"maxModelLen": "1k"}},
    {"rollout": {"template": "Latest"}, "engine": {"maxModelLen": 1000}},
    {"engine": {"maxModelLen": "1k"}, "scheduling": {"affinity": {"nodeAffinity": {}}}},
    {
        "engine": {"maxModelLen": "1k"},
        "service": {"port": 80},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1},
    },
    {"suspend": True, "model": {"path": "/models/other"}},
    {},
    {"scheduling": {"schedulerName": "default-scheduler"}, "runtime": {"imagePullPolicy": "IfNotPresent"}},
)
"""Specs that follow each other, beside the model."""


@pytest.fixture
def models(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace with an operator of its own."""
    with defined(control_plane), fresh_namespace(control_plane, "diff") as namespace:
        operator = Operator(control_plane, tmp_path, namespace.name, namespaces=[namespace.name])
        try:
            operator.wait_active()
            yield namespace
            assert "Traceback" not in operator.log.read_text(), operator.log.read_text()
        finally:
            operator.stop()


def observed(models: Namespace) -> dict[str, Object]:
    """The objects of the service by kind, once operator and Deployment controller have seen all of it."""

    def settled() -> bool:
        seen = (models.the("slip", "demo"), models.get("deployment", "demo"))
        return all(
            one and one.get("status", {}).get("observedGeneration") == one["metadata"]["generation"]
            for one in seen
        )

    until(settled, "all is observed")
    found = models.all("deployments,services,poddisruptionbudgets", "-l", "app.kubernetes.io/instance=demo")
    return {one["kind"]: one for one in found}


def predicted(printed: str, document: Object, folder: Path) -> Object:
    """What the command says of the document, where kubectl has printed that."""
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump(document))
    words = [sys.executable, "-m", "slipway", "diff", "-", str(path), "--json"]
    done = subprocess.run(words, input=printed, capture_output=True, text=True, check=False)
    found: Object = json.loads(done.stdout)
    changes = {one["change"] for one in found["objects"]} - {"unchanged"}
    assert done.returncode == (1 if changes else 0), done.stderr
    return found


def test_what_is_predicted_of_each_of_many_edits_comes_to_pass(models: Namespace, tmp_path: Path) -> None:
    models.apply(service())
    before = observed(models)
    restarts = []
    for edit in EDITS:
        document = service(**edit)
        said = predicted(models.kubectl("get", "slip", "demo", "--output", "yaml"), document, tmp_path)
        models.kubectl("replace", "-f", "-", input=yaml.safe_dump(document))
        after = observed(models)
        old, new = (objects["Deployment"] for objects in (before, after))
        rolled = old["metadata"]["annotations"][REVISION] != new["metadata"]["annotations"][REVISION]
        assert rolled == said["restart"], f"{edit}: {said}"
        assert (old["spec"]["template"] != new["spec"]["template"]) == rolled, edit
        assert new["spec"]["replicas"] == said["replicas"]["after"]
        for kind in KINDS:
            change = next((one["change"] for one in said["objects"] if one["kind"] == kind), "absent")
            assert (kind in before, kind in after) == (
                change in ("changed", "unchanged", "deleted"),
                change in ("changed", "unchanged", "created"),
            ), f"{edit}: {said}"
            if change in ("changed", "unchanged"):
                touched = before[kind]["spec"] != after[kind]["spec"]
                assert touched == (change == "changed"), f"{edit}: {kind} {said}"
        restarts.append(rolled)
        before = after
    assert restarts.count(True) >= 4
    assert restarts.count(False) >= 4
