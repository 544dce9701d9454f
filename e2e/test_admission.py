"""The policy as the API server enforces it: on services as the operator does, and on their pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.attempts import ATTEMPTS, policy
from e2e.ground.children import GroundFailed
from e2e.ground.control_plane import ControlPlane
from e2e.helm.command import VALUES, golden_of
from e2e.operators import Object, defined, service, until
from slipway.service import InvalidService, from_mapping
from slipway.service.labels import PROFILE

NAMESPACE = "admitting"
OF_CHART = next(path for path in VALUES if path.stem == "admission")
POLICY = policy()
ADMITTED: dict[str, Object] = {
    "plain": {},
    "own-image": {"runtime": {"image": "slipway/runtime-cpu:7"}},
    "image": {"runtime": {"image": "registry.example.com/models/mine:1"}},
    "image-by-digest": {"runtime": {"image": f"registry.example.com/models/mine@sha256:{'0' * 64}"}},
    "model-image": {"model": {"image": {"reference": "registry.example.com/models/weights:1"}}},
    "container-images": {
        "initContainers": [{"name": "one", "image": "registry.example.com/models/one:1"}],
        "sidecars": [{"name": "two", "image": "slipway/runtime-cpu:1"}],
    },
    "account": {"runtime": {"serviceAccountName": "models"}},
    "default-account": {"runtime": {"serviceAccountName": "default"}},
    "permitted-argument": {"engine": {"trustRemoteCode": True}},
    "argument-at-its-default": {"engine": {"workerCls": "auto", "middleware": []}},
    "template-text": {"engine": {"chatTemplate": "{{ messages }}"}},
    "file": {"engine": {"chatTemplate": "/etc/models/chat.jinja"}},
    "tokenizer-of-the-hub": {"engine": {"tokenizer": "org/name"}},
}
REFUSED: dict[str, tuple[Object, str]] = {
    "short-image": ({"runtime": {"image": "nginx"}}, "images: nginx refused by the policy"),
    "other-folder": (
        {"runtime": {"image": "registry.example.com/modelsx/a"}},
        "policy.images would admit it",
    ),
    "model-image": ({"model": {"image": {"reference": "quay.io/weights:1"}}}, "images: quay.io/weights:1"),
    "init-image": ({"initContainers": [{"name": "one", "image": "nginx"}]}, "images: nginx"),
    "sidecar-image": ({"sidecars": [{"name": "two", "image": "quay.io/two:1"}]}, "images: quay.io/two:1"),
    "second-image": (
        {"sidecars": [{"name": "a", "image": "slipway/runtime-cpu:1"}, {"name": "b", "image": "quay.io/b"}]},
        "images: quay.io/b refused",
    ),
    "two-variables": (
        {"env": [{"name": "PYTHONPATH", "value": "/data"}, {"name": "PATH", "value": "/data"}]},
        "variables: PYTHONPATH, PATH refused by the policy",
    ),
    "worker": ({"engine": {"workerCls": "a.B"}}, "spec.engine.workerCls: it runs code"),
    "middleware": ({"engine": {"middleware": ["a.B"]}}, "spec.engine.middleware: it runs code"),
    "media": ({"engine": {"allowedLocalMediaPath": "/cache"}}, "spec.engine.allowedLocalMediaPath"),
    "template": ({"engine": {"chatTemplate": "/etc/passwd"}}, "files: /etc/passwd refused by the policy"),
    "upwards": ({"engine": {"chatTemplate": "/cache/../etc/passwd"}}, "policy.filePaths would admit it"),
    "log": ({"engine": {"logConfigFile": "/cache/log.json"}}, "spec.engine.logConfigFile: it runs code"),
    "model-path": ({"model": {"path": "/srv/model"}}, "files: /srv/model refused by the policy"),
}
BEYOND = {"always", "nested", "under"}
SAMPLE = {one["field"]: one for one in reversed(ATTEMPTS) if not BEYOND & one.keys()}
"""The first of the attempts at each field, of those that the admission policy refuses as it is here."""


def document(name: str, spec: Object) -> Object:
    return service(name, **{"model": {"hub": {"id": "org/name"}}, **spec})


def told(plane: ControlPlane, item: Object) -> str:
    """What the API server says to its creation, which is not carried out; empty where it admits it."""
    try:
        words = ("create", "--dry-run=server", "-n", NAMESPACE, "-f", "-")
        plane.kubectl(*words, input=json.dumps(item))
    except GroundFailed as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    rendered = yaml.safe_load_all(golden_of(OF_CHART).read_text())
    policies = [one for one in rendered if one["kind"].startswith("ValidatingAdmissionPolicy")]
    assert len(policies) == 4
    whole = yaml.safe_dump_all(policies)
    control_plane.kubectl("create", "namespace", NAMESPACE)
    with defined(control_plane):
        control_plane.kubectl("apply", "-f", "-", input=whole)
        for item in (document("first", REFUSED["worker"][0]), pod("first", image="nginx")):
            until(lambda: "denied request" in told(control_plane, item), "the policies work")  # noqa: B023
        yield control_plane
        control_plane.kubectl("delete", "-f", "-", input=whole)
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def pod(name: str, ours: bool = True, image: str = "slipway/runtime-cpu:1", **spec: Any) -> Object:
    labels = {"app.kubernetes.io/name": "slipway", "app.kubernetes.io/managed-by": "slipway"}
    sidecar = {"name": "proxy", "image": "mesh.example.com/proxy:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels if ours else {}},
        "spec": {"containers": [{"name": "server", "image": image}, sidecar], **spec},
    }


@pytest.mark.parametrize("name", ADMITTED)
def test_what_the_policy_admits_both_admit(plane: ControlPlane, name: str) -> None:
    item = document(name, ADMITTED[name])
    assert from_mapping(item, POLICY)
    assert told(plane, item) == ""


@pytest.mark.parametrize("field", SAMPLE)
def test_an_attempt_at_each_field_is_refused(plane: ControlPlane, field: str) -> None:
    attempt = SAMPLE[field]
    item = document("attempt", attempt["spec"])
    with pytest.raises(InvalidService) as failure:
        from_mapping(item, POLICY)
    assert failure.value.path == field
    assert "ValidatingAdmissionPolicy 'slipway-inferenceservices'" in told(plane, item)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_policy_refuses_both_refuse(plane: ControlPlane, name: str) -> None:
    spec, words = REFUSED[name]
    item = document(name, spec)
    with pytest.raises(InvalidService) as failure:
        from_mapping(item, POLICY)
    assert failure.value.reason == "PolicyDenied"
    said = told(plane, item)
    assert "ValidatingAdmissionPolicy 'slipway-inferenceservices'" in said
    assert words in said


def test_a_pod_outside_the_policy_is_refused_and_one_of_no_service_is_none_of_its_business(
    plane: ControlPlane,
) -> None:
    assert told(plane, pod("own")) == ""
    assert told(plane, pod("other", ours=False, image="nginx")) == ""
    assert "images: nginx refused" in told(plane, pod("image", image="nginx"))
    weights = {"name": "model", "image": {"reference": "quay.io/weights:1"}}
    assert "quay.io/weights:1" in told(plane, pod("weights", volumes=[weights]))
    fetch = [{"name": "fetch", "image": "quay.io/fetch:1"}]
    assert "quay.io/fetch:1" in told(plane, pod("fetch", initContainers=fetch))
    of_profile = pod("profile", image="quay.io/of-profile:1", serviceAccountName="gpu")
    of_profile["metadata"]["annotations"] = {PROFILE: "gpus"}
    assert "denied request" not in told(plane, of_profile)
