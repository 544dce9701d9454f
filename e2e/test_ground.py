"""The control plane stands in seconds, is alone in its network, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.ground import images
from e2e.ground.build import Binaries
from e2e.ground.children import GroundFailed
from e2e.ground.control_plane import ControlPlane
from e2e.ground.names import Ground
from e2e.ground.patience import at_most, scaled
from e2e.ground.remains import processes

_ROOT = Path(__file__).resolve().parent.parent
_OWNER = """
import time
from e2e.ground.build import Binaries
from e2e.ground.{module} import {kind}
with {kind}(Binaries()) as ground:
    {work}
    print(ground.name, flush=True)
    time.sleep(600)
"""


def test_two_control_planes_at_once_are_strangers(control_plane: ControlPlane, binaries: Binaries) -> None:
    begin = time.monotonic()
    with ControlPlane(binaries) as other:
        assert time.monotonic() - begin < scaled(60)
        other.kubectl("create", "namespace", "only-there")
        assert "only-there" in other.kubectl("get", "namespaces")
        assert "only-there" not in control_plane.kubectl("get", "namespaces")
        ground = other.ground
    _assert_gone(ground)


def test_the_server_names_its_version(control_plane: ControlPlane) -> None:
    version = json.loads(control_plane.kubectl("version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"] == "v1.36.3"
    assert version["clientVersion"]["gitVersion"] == "v1.36.3"


def test_children_go_with_their_owner(control_plane: ControlPlane) -> None:
    control_plane.kubectl("create", "configmap", "owner")
    uid = control_plane.kubectl("get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    child = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "child", "ownerReferences": [owner]},
    }
    control_plane.kubectl("create", "-f", "-", input=json.dumps(child))
    control_plane.kubectl("delete", "configmap", "owner")
    control_plane.until(lambda: "child" not in control_plane.kubectl("get", "configmaps"), "collection")


def test_objects_outlive_an_outage_of_the_api(control_plane: ControlPlane) -> None:
    control_plane.kubectl("create", "configmap", "kept")
    control_plane.stop_api(abruptly=True)
    with pytest.raises(GroundFailed, match="ended with 1"):
        control_plane.kubectl("get", "configmap", "kept", "--request-timeout=2s")
    control_plane.start_api()
    assert "kept" in control_plane.kubectl("get", "configmap", "kept")
    control_plane.kubectl("delete", "configmap", "kept")


def test_another_user_has_the_rights_of_rbac_only_and_the_audit_says_so(control_plane: ControlPlane) -> None:
    config = control_plane.kubeconfig_for("stranger")
    with pytest.raises(GroundFailed, match="forbidden"):
        control_plane.kubectl("get", "secrets", f"--kubeconfig={config}")
    asked = [event for event in control_plane.audit() if event["user"]["username"] == "stranger"]
    assert [event["responseStatus"]["code"] for event in asked if "secrets" in event["requestURI"]] == [403]


def test_the_network_has_no_way_out(control_plane: ControlPlane) -> None:
    lines = control_plane.must("ip", "-o", "-4", "address").splitlines()
    assert {line.split()[1] for line in lines} == {"lo", "node0"}


def test_fake_nodes_pretend_to_run_pods(binaries: Binaries, carries_control_plane: None) -> None:
    with ControlPlane(binaries) as plane:
        plane.kwok(2, {"nvidia.com/gpu": 8})
        plane.kubectl("create", "deployment", "many", "--image=never/pulled", "--replicas=20")
        plane.kubectl("rollout", "status", "deployment/many", at_most(120))


def test_a_killed_test_run_leaves_nothing(carries_control_plane: None) -> None:
    _assert_a_kill_leaves_nothing("control_plane", "ControlPlane", "pass")


def test_a_killed_test_run_leaves_no_pods(carries_node: None, tmp_path: Path) -> None:
    archive = images.busybox(tmp_path / "busybox.tar", "busybox:1")
    work = (
        f"from pathlib import Path; image = ground.push(Path({str(archive)!r}), 'busybox:1'); "
        "ground.kubectl('run', 'sleeper', f'--image={image}', '--', '-c', 'sleep 1000'); "
        "ground.kubectl('wait', 'pod/sleeper', '--for=condition=Ready', '--timeout=120s')"
    )
    _assert_a_kill_leaves_nothing("node", "Cluster", work)


def _assert_a_kill_leaves_nothing(module: str, kind: str, work: str) -> None:
    source = _OWNER.format(module=module, kind=kind, work=work)
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    owner = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, env=environment, cwd=_ROOT
    )
    assert owner.stdout is not None
    try:
        ground = Ground(owner.stdout.readline().strip())
        assert processes(ground)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    _assert_gone(ground)


def _assert_gone(ground: Ground, patience: float = 30) -> None:
    """A killed owner's ground is cleared by its guardian, which needs a moment."""
    end = time.monotonic() + scaled(patience)
    while ground.folder.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not ground.folder.exists()
    assert not ground.netns.exists()
    # Not by what clears it away, which would be as blind here: a container's root lies in the folder.
    assert not [entry for entry in Path("/proc").glob("[0-9]*") if _rooted_in(entry, ground.folder)]
    assert not processes(ground)
    assert ground.name not in Path("/proc/self/mountinfo").read_text()


def _rooted_in(process: Path, folder: Path) -> bool:
    try:
        return f"{folder}/" in (process / "mountinfo").read_text().partition("\n")[0]
    except OSError:
        return False
