"""Profiles of a whole cluster: chosen by name, edited without a restart, missed by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.ground.build import Binaries
from e2e.ground.children import GroundFailed
from e2e.ground.control_plane import ControlPlane
from e2e.operators import Namespace, Object, Operator, define, put_profile, service, until

KIND = "inferenceservices.slipway.dev"
SHARED = "example.com/gpu"
SERVICES = 20
ZONE = {"name": "TZ", "value": "UTC"}


@pytest.fixture
def plane(binaries: Binaries, carries_control_plane: None) -> Iterator[ControlPlane]:
    """A control plane of the test's own: profiles belong to all of it, and so do nodes that pretend."""
    with ControlPlane(binaries) as fresh:
        define(fresh)
        fresh.kwok(2, {SHARED: 64})
        yield fresh


@pytest.fixture
def models(plane: ControlPlane, tmp_path: Path) -> Iterator[Namespace]:
    operator = Operator(plane, tmp_path, "profiles")
    try:
        operator.wait_active()
        yield Namespace(plane, "models")
        assert operator.forbidden() == set()
        assert "Traceback" not in operator.log.read_text(), operator.log.read_text()
    finally:
        operator.stop()


def until_condition(models: Namespace, name: str, kind: str, part: str) -> None:
    def said() -> str:
        found = models.condition(name, kind)
        return f"{found.get('status')} {found.get('reason')}: {found.get('message')}"

    until(lambda: part in said(), lambda: f"{name}: {said()!r} has {part!r}", 60)


def test_twenty_services_run_on_while_their_profile_is_edited(plane: ControlPlane, models: Namespace) -> None:
    devices = {"vendor": "nvidia", "resource": SHARED}
    put_profile(plane, "shared", devices=devices, scheduling={"nodeSelector": {"pool": "fake"}})
    names = [f"model-{number}" for number in range(SERVICES)]
    models.apply(*(service(name, profile="shared") for name in names))
    for name in names:
        until_condition(models, name, "Ready", "True Serving")
    before = {one["metadata"]["name"]: one for one in models.all("deployments")}
    assert len(before) == SERVICES
    pod = before["model-0"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"][SHARED] == "1"
    assert pod["nodeSelector"]["pool"] == "fake"
    put_profile(plane, "shared", devices=devices, env=[ZONE])
    for name in names:
        until_condition(models, name, "UpgradeAvailable", "env[TZ] absent")
    after = {one["metadata"]["name"]: one for one in models.all("deployments")}
    assert {name: one["metadata"]["generation"] for name, one in after.items()} == {
        name: one["metadata"]["generation"] for name, one in before.items()
    }
    models.apply(service("model-0", profile="shared", rollout={"template": "Latest"}))
    until(
        lambda: models.the("deployment", "model-0")["metadata"]["generation"] > 1,
        "the edited profile in a rollout",
    )
    pod = models.the("deployment", "model-0")["spec"]["template"]["spec"]
    assert "pool" not in pod.get("nodeSelector", {})
    assert ZONE in pod["containers"][0]["env"]


def test_a_profile_that_is_missing_or_wrong_is_named_and_noticed_once_it_is_there(
    plane: ControlPlane, models: Namespace
) -> None:
    put_profile(plane, "other")
    models.apply(service("early", profile="late"))
    missing = "False ProfileMissing: spec.profile: there is no ServingProfile late. There are other."
    until_condition(models, "early", "Valid", missing)
    put_profile(plane, "late", env=[ZONE], resources={"cpu": 2, "limits": {"cpu": 1}})
    until_condition(
        models, "early", "Valid", "False ProfileInvalid: spec.profile: ServingProfile late cannot be used"
    )
    put_profile(plane, "late", env=[ZONE])
    until_condition(models, "early", "Ready", "True Serving")
    plane.kubectl("delete", "servingprofiles", "late")
    until_condition(models, "early", "Valid", "False ProfileMissing")
    assert models.all("pods", "--selector", "app.kubernetes.io/instance=early")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"devices": {"resource": SHARED}}, "name the vendor"),
        ({"env": [{"name": "VLLM_NOTHING", "value": "1"}]}, "VLLM_NOTHING does not exist"),
        ({"node": {}}, 'unknown field "spec.node"'),
        ({"devices": {"vendor": "acme"}}, "Unsupported value"),
    ],
)
def test_the_api_server_refuses_a_wrong_profile(plane: ControlPlane, spec: Object, words: str) -> None:
    with pytest.raises(GroundFailed, match=words):
        put_profile(plane, "wrong", **spec)


def test_profiles_are_listed_with_what_they_give(plane: ControlPlane) -> None:
    put_profile(plane, "gpu", devices={"vendor": "nvidia"}, runtime={"image": "example.com/runtime:1"})
    header, line = plane.kubectl("get", "slipprofile").splitlines()
    assert header.split() == ["NAME", "VENDOR", "RESOURCE", "IMAGE", "AGE"]
    assert line.split()[:3] == ["gpu", "nvidia", "example.com/runtime:1"]
