"""The operator of an installed release, run beside the API server as its pod would, and what it serves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.ground.control_plane import ControlPlane
from e2e.ground.patience import scaled
from e2e.helm.command import CRD, REPOSITORY
from e2e.operators import until

Object = dict[str, Any]


@contextmanager
def operator_of(plane: ControlPlane, folder: Path, release: str, port: int = 0) -> Iterator[str]:
    """Run the operator with the settings and rights that the release gives its pod; yields its user.

    `port` is that of its health, of the system's choice where it is 0.
    """
    namespace = f"{release}-system"
    text = plane.kubectl("get", "deployment", f"{release}-operator", "--namespace", namespace, "-o", "json")
    pod = json.loads(text)["spec"]["template"]["spec"]
    user = f"system:serviceaccount:{namespace}:{pod['serviceAccountName']}"
    environment = {
        "KUBECONFIG": str(plane.kubeconfig_for(user)),
        "PYTHONPATH": f"{REPOSITORY / 'runtime'}:{REPOSITORY / 'operator'}",
    }
    text = plane.kubectl("get", "configmap", f"{release}-operator", "--namespace", namespace, "-o", "json")
    settings = yaml.safe_load(json.loads(text)["data"]["settings.yaml"]) | {"healthPort": port}
    file = folder / f"{release}-settings.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    argv = (sys.executable, "-m", "slipway_operator", f"--settings={file}")
    with (folder / f"{release}.log").open("w") as log:
        child = plane.popen(*argv, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield user
        assert child.poll() is None, (folder / f"{release}.log").read_text()
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(scaled(20))
        finally:
            child.kill()
            child.wait()


def established(plane: ControlPlane) -> None:
    """Wait until the CRD is served; `kubectl wait` fails on one whose status is not written yet."""

    def served() -> bool:
        conditions = (
            json.loads(plane.kubectl("get", "crd", CRD, "-o", "json")).get("status", {}).get("conditions")
            or []
        )
        return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)

    until(served, "the established CRD")


def children(plane: ControlPlane, kind: str, name: str) -> list[Object]:
    """What of this kind belongs to the service `name` and is not on its way out."""
    text = plane.kubectl("get", kind, "-l", f"app.kubernetes.io/instance={name}", "-o", "json")
    return [item for item in json.loads(text)["items"] if "deletionTimestamp" not in item["metadata"]]


def service(plane: ControlPlane, name: str) -> Object:
    found: Object = json.loads(plane.kubectl("get", CRD, name, "-o", "json"))
    return found


def is_ready(plane: ControlPlane, name: str) -> bool:
    conditions = service(plane, name).get("status", {}).get("conditions", [])
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


def serve(plane: ControlPlane, name: str, count: int = 1) -> None:
    """Report what a kubelet would once the runtime answers: each of the service's pods runs and is ready."""

    def pods() -> list[Object]:
        found = children(plane, "pods", name)
        return found if len(found) == count else []

    for pod in until(pods, f"pods of {name}"):
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        status = {"phase": "Running", "conditions": [{"type": kind, "status": "True"} for kind in kinds]}
        where = ("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge")
        plane.kubectl(*where, "-p", json.dumps({"status": status}))
