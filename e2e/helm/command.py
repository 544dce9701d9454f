"""One version of Helm, with folders of its own, against one cluster or none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.ground.control_plane import ControlPlane
from e2e.ground.patience import scaled
from e2e.ground.programs import KUBERNETES
from slipway import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
OPERATOR_CHART = REPOSITORY / "helm" / "slipway"
MODEL_CHART = REPOSITORY / "helm" / "slipway-model"
VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))
"""Sets of values, each with a golden file; those called model-… are of the model's chart."""
CRD = "inferenceservices.slipway.dev"
GENERATED = {
    "CustomResourceDefinition": ("spec", "see crds/"),
    "PrometheusRule": ("spec", "see helm/slipway/files/alerts.yaml"),
    "ConfigMap": ("data", "see helm/slipway/files/dashboard.json"),
}
"""Kind → the part that a golden file only names, and where it is."""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Helm:
    """`run` starts a command where the cluster is; `home` holds Helm's own files."""

    binary: Path
    home: Path
    run: Run

    def __call__(self, *words: str | Path) -> str:
        """Standard output; fails the test with Helm's words where it ends with an error."""
        done = self.attempt(*words)
        assert done.returncode == 0, f"helm {' '.join(map(str, words))}: {done.stderr}"
        return done.stdout

    def attempt(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run(*self.argv(*words))

    def refusal(self, *words: str | Path) -> str:
        """What Helm says, on one line, of a command that must fail."""
        done = self.attempt(*words)
        assert done.returncode != 0, f"helm {' '.join(map(str, words))} was expected to fail: {done.stdout}"
        return " ".join(done.stderr.split())

    def argv(self, *words: str | Path) -> list[str]:
        folders = [f"HELM_{kind}_HOME={self.home / kind.lower()}" for kind in ("CACHE", "CONFIG", "DATA")]
        return ["env", *folders, str(self.binary), *map(str, words)]

    def releases(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self("list", "--all-namespaces", "--output", "json"))
        return listed

    def rendered(self, values: Path) -> list[dict[str, Any]]:
        """The documents that the chart makes of a set of values, without what a golden file would outlive.

        That is the version's number, the operator's rules and what lies in the chart as a file.
        """
        text = self(
            *("template", "sample", chart_of(values), "--namespace", "slipway-system"),
            *("--values", values, "--kube-version", KUBERNETES),
        )
        documents = [one for one in yaml.safe_load_all(text.replace(__version__, "VERSION")) if one]
        for document in documents:
            if settings := document.get("data", {}).get("settings.yaml"):
                document["data"]["settings.yaml"] = yaml.safe_load(settings)
            elif generated := GENERATED.get(document["kind"]):
                document.update([generated])
            if document["kind"] == "Deployment":
                annotations = document["spec"]["template"]["metadata"]["annotations"]
                annotations["checksum/settings"] = "of the ConfigMap's settings.yaml"
            if document["kind"] in ("ClusterRole", "Role") and "operator" in document["metadata"]["name"]:
                document["rules"] = "see slipway_operator.permissions"
        return sorted(documents, key=_place)


def _place(document: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def chart_of(values: Path) -> Path:
    return MODEL_CHART if values.name.startswith("model-") else OPERATOR_CHART


def golden_of(values: Path) -> Path:
    return values.parent.parent / "golden" / values.name


def run_here(*argv: str) -> subprocess.CompletedProcess[str]:
    """Without a cluster, for what Helm does alone."""
    environment = {key: item for key, item in os.environ.items() if key != "KUBECONFIG"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=scaled(120), env=environment)


def run_in(plane: ControlPlane) -> Run:
    """Beside the API server, with the pinned kubectl first on the path."""

    def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
        path = f"{plane.binaries['kubectl'].parent}:{os.environ['PATH']}"
        return plane.run(*argv, capture_output=True, text=True, timeout=scaled(120), env={"PATH": path})

    return run


def chart_with(chart: Path, folder: Path, version: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the operator's chart as version `version`, its CRD's spec changed by `change`."""
    copy = folder / f"{chart.name}-{version}"
    shutil.copytree(chart, copy)
    about = yaml.safe_load((copy / "Chart.yaml").read_text(encoding="utf-8"))
    (copy / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": version}), encoding="utf-8")
    path = copy / "files" / "crds" / f"{CRD}.yaml"
    crd = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(crd["spec"])
    path.write_text(yaml.safe_dump(crd, sort_keys=False), encoding="utf-8")
    return copy


def spec_fields(crd_spec: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of `spec` in the only version of a CRD's spec."""
    schema = crd_spec["versions"][0]["schema"]["openAPIV3Schema"]
    fields: dict[str, Any] = schema["properties"]["spec"]["properties"]
    return fields
