"""What whoever runs the cluster admits of a document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slipway.service import InvalidService, Policy, from_mapping
from slipway.service.policy import full_name


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"hub": {"id": "org/name"}}, **spec},
    }


def denied(policy: Policy, **spec: Any) -> str:
    """The sentence by which the policy refuses it; the document without the field is admitted."""
    with pytest.raises(InvalidService) as failure:
        from_mapping(document(**spec), policy)
    assert failure.value.reason == "PolicyDenied"
    assert from_mapping(document(), policy)
    return str(failure.value)


@pytest.mark.parametrize(
    "engine",
    [
        {"trustRemoteCode": True},
        {"middleware": ["module.Class"]},
        {"toolParserPlugin": "/etc/plugin.py"},
        {"allowedLocalMediaPath": "/media"},
    ],
)
def test_code_of_a_user_runs_where_the_policy_admits_it(engine):
    (name,) = engine
    said = denied(Policy(), engine=engine)
    assert said.startswith(f"spec.engine.{name}: ")
    assert f"set policy.allowCode, or to add {name} to policy.permittedArguments" in said
    assert from_mapping(document(engine=engine), Policy(allow_code=True))
    assert from_mapping(document(engine=engine), Policy(permitted_arguments=(name,)))
    assert denied(Policy(permitted_arguments=("schedulerCls",)), engine=engine)


def test_an_argument_that_asks_for_no_code_needs_no_policy():
    assert from_mapping(document(engine={"trustRemoteCode": False, "middleware": []}))


IMAGES = Policy(images=("registry.example.com/models/", "docker.io/slipway", "quay.io/a/b:1"))


@pytest.mark.parametrize(
    ("image", "admitted"),
    [
        ("registry.example.com/models/mine:1", True),
        ("registry.example.com/models/deep/mine@sha256:0", True),
        ("registry.example.com/models-of-others/mine:1", False),
        ("registry.example.com/mine:1", False),
        ("registry.example.com.evil.example/models/mine:1", False),
        ("slipway/runtime-cpu:1", True),
        ("docker.io/slipway/runtime-cpu:1", True),
        ("slipway-evil/runtime-cpu:1", False),
        ("slipway", False),
        ("quay.io/a/b:1", True),
        ("quay.io/a/b:1@sha256:0", True),
        ("quay.io/a/b:12", False),
        ("localhost/slipway/runtime:1", False),
    ],
)
def test_images_are_those_of_the_registries_and_folders_that_are_named(image, admitted):
    for spec, field in (
        ({"runtime": {"image": image}}, "spec.runtime.image"),
        ({"model": {"image": {"reference": image}}}, "spec.model.image.reference"),
        ({"initContainers": [{"name": "c", "image": image}]}, "spec.initContainers[0].image"),
        ({"sidecars": [{"name": "c", "image": image}]}, "spec.sidecars[0].image"),
    ):
        assert from_mapping(document(**spec))
        if admitted:
            assert from_mapping(document(**spec), IMAGES)
        else:
            assert denied(IMAGES, **spec).startswith(
                f"{field}: {image} is none of the images that the policy"
            )


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ("nginx", "docker.io/library/nginx"),
        ("nginx:1", "docker.io/library/nginx:1"),
        ("a/b", "docker.io/a/b"),
        ("localhost/b", "localhost/b"),
        ("127.0.0.1:5000/b", "127.0.0.1:5000/b"),
        ("host:5000/b", "host:5000/b"),
    ],
)
def test_a_short_name_is_completed_as_a_node_does_it(image, whole):
    assert full_name(image) == whole


@pytest.mark.parametrize("field", ["command", "args"])
@pytest.mark.parametrize("containers", ["initContainers", "sidecars"])
def test_a_container_of_bounded_images_runs_them_as_they_are(containers, field):
    container = {"name": "c", "image": "slipway/tool:1"}
    wanted = {containers: [{**container, field: ["python", "-c", "…"]}]}
    said = denied(IMAGES, **wanted)
    assert said.startswith(
        f"spec.{containers}[0].{field}: python is none of the commands that the policy admits"
    )
    assert "images are admitted as they are" in said
    assert from_mapping(document(**{containers: [container]}), IMAGES)
    assert from_mapping(document(**wanted), replace(IMAGES, allow_code=True))
    assert from_mapping(document(**wanted))


def test_accounts_are_those_that_are_named_and_the_one_without_a_name():
    policy = Policy(service_accounts=("models",))
    said = denied(policy, runtime={"serviceAccountName": "admin"})
    assert said.startswith("spec.runtime.serviceAccountName: admin is none of the accounts that the policy")
    for name in ("models", "default"):
        assert from_mapping(document(runtime={"serviceAccountName": name}), policy)


FILES = Policy(allow_code=True, file_paths=("/etc/models/", "/cache"))


@pytest.mark.parametrize(
    ("engine", "admitted"),
    [
        ({"chatTemplate": "/etc/models/chat.jinja"}, True),
        ({"chatTemplate": "/etc/models"}, True),
        ({"chatTemplate": "/etc/passwd"}, False),
        ({"chatTemplate": "/etc/models/../passwd"}, False),
        ({"chatTemplate": "/etc/models-of-others/chat.jinja"}, False),
        ({"chatTemplate": "{{ messages }}"}, True),
        ({"logConfigFile": "/proc/self/environ"}, False),
        ({"downloadDir": "/cache/models"}, True),
        ({"downloadDir": "models"}, False),
        ({"tokenizer": "/srv/tokenizer"}, False),
        ({"tokenizer": "org/name"}, True),
        ({"loraModules": ["sql=/srv/adapter"]}, False),
        ({"loraModules": ["sql=/cache/adapter"]}, True),
        ({"speculativeConfig": '{"model": "/srv/draft", "num_speculative_tokens": 1}'}, False),
        ({"speculativeConfig": {"model": "/cache/draft", "num_speculative_tokens": 1}}, True),
        ({"rootPath": "/api"}, True),
    ],
)
def test_files_lie_below_the_folders_that_are_named(engine, admitted):
    assert from_mapping(document(engine=engine), Policy(allow_code=True))
    if admitted:
        assert from_mapping(document(engine=engine), FILES)
    else:
        assert denied(FILES, engine=engine).startswith(f"spec.engine.{next(iter(engine))}: ")


def test_a_model_of_a_path_lies_there_too():
    assert from_mapping(document(model={"path": "/cache/model"}), FILES)
    assert denied(FILES, model={"path": "/models/x"}).startswith("spec.model.path: /models/x lies in none")
