"""Profiles of a whole cluster: chosen by name, edited without a restart, missed by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.ground.children import GroundFailed
from e2e.ground.control_plane import ControlPlane
from e2e.operators import Namespace, Object, put_profile, service, serving, until
from slipway.args.export import short_schema

KIND = "inferenceservices.slipway.dev"
SHARED = "example.com/gpu"
SERVICES = 20
ZONE = {"name": "TZ", "value": "UTC"}


@pytest.fixture
def plane(plane: ControlPlane) -> ControlPlane:
    """With devices of another name."""
    plane.kwok(2, {SHARED: 64})
    return plane


@pytest.fixture
def models(plane: ControlPlane, tmp_path: Path) -> Iterator[Namespace]:
    with serving(plane, tmp_path, "profiles") as namespace:
        yield namespace


def until_condition(models: Namespace, name: str, kind: str, part: str) -> None:
    def said() -> str:
        found = models.condition(name, kind)
        return f"{found.get('status')} {found.get('reason')}: {found.get('message')}"

    until(lambda: part in said(), lambda: f"{name}: {said()!r} has {part!r}")


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


def test_an_image_that_does_not_take_the_arguments_gets_no_pod_and_the_old_ones_stay(
    plane: ControlPlane, models: Namespace
) -> None:
    schema = json.loads(short_schema())
    (arguments,) = (group["arguments"] for group in schema["groups"])
    arguments[:] = [one for one in arguments if one.get("field") != "maxNumSeqs"]
    image = {"image": "registry.example.com/runtime:0.0.9"}
    put_profile(plane, "older", runtime=image, schema={**schema, "version": "0.0.9"})
    models.apply(service("demo", profile="older", engine={"maxModelLen": 4096}))
    until_condition(models, "demo", "Ready", "True Serving")
    until_condition(models, "demo", "ArgsCompatible", "True SchemaMatches")
    before = models.all("replicasets")
    models.apply(service("demo", profile="older", engine={"maxNumSeqs": 4}))
    refused = f"{image['image']} does not take the arguments. spec.engine.maxNumSeqs: version 0.0.9"
    until_condition(models, "demo", "ArgsCompatible", f"False ArgumentsRefused: {refused}")
    until_condition(models, "demo", "Ready", "False ArgumentsRefused")
    assert models.condition("demo", "Available")["status"] == "True"
    assert models.all("replicasets") == before
    models.apply(service("own", runtime=image))
    until_condition(models, "own", "ArgsCompatible", "Unknown SchemaUnknown")
    models.apply(service("usual"))
    until_condition(models, "usual", "Ready", "True Serving")
    assert not models.condition("usual", "ArgsCompatible")


def test_a_profile_whose_new_image_would_refuse_arguments_stops_nothing(
    plane: ControlPlane, models: Namespace
) -> None:
    schema = json.loads(short_schema())
    put_profile(plane, "moving", runtime={"image": "registry.example.com/runtime:1"}, schema=schema)
    models.apply(service("runs", profile="moving", engine={"maxNumSeqs": 4}))
    until_condition(models, "runs", "Ready", "True Serving")
    generation = models.the("deployment", "runs")["metadata"]["generation"]
    (arguments,) = (group["arguments"] for group in schema["groups"])
    arguments[:] = [one for one in arguments if one.get("field") != "maxNumSeqs"]
    put_profile(plane, "moving", runtime={"image": "registry.example.com/runtime:2"}, schema=schema)
    until_condition(models, "runs", "ArgsCompatible", "False ArgumentsRefused")
    until_condition(models, "runs", "UpgradeAvailable", "registry.example.com/runtime:2")
    assert models.condition("runs", "Ready")["status"] == "True"
    assert models.the("deployment", "runs")["metadata"]["generation"] == generation


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
