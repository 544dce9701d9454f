"""What the pages for platform teams show, proved against the CRD, the charts and the examples.

Every function here raises AssertionError, or what the real check raises, where a page is wrong.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from slipway import service
from slipway.service.charts import json_schema, spec_schema
from slipway.service.profile import PROFILE_KIND, load_profile

ROOT = Path(__file__).parents[1]
RELEASE, RELEASE_NAMESPACES = "slipway", ("slipway-system", "team-a")
OPERATOR = f"{RELEASE}-operator"
VALUES = "# values.yaml\n"
"""How a block of a page begins that holds values of the chart slipway."""

FLAGS = frozenset({"--all-namespaces", "--create-namespace", "--previous"})
VALUED = frozenset(
    [
        "--namespace",
        "--output",
        "--for",
        "--timeout",
        "--type",
        "--patch",
        "--replicas",
        "--from-literal",
        "--from-file",
        "--dry-run",
        "--cert",
        "--key",
        "--container",
        "--docker-server",
        "--docker-username",
        "--docker-password",
        "--selector",
        "--set",
        "--values",
        "-f",
    ]
)
HELM_VERBS = {"install": 2, "upgrade": 2, "test": 1, "rollback": 1, "uninstall": 1, "package": 1}
"""Verb → number of words after it that are no options."""
CONDITIONS = ("Ready", "Available", "Valid", "Scheduled", "ModelLoaded", "Progressing")
FOREIGN_KINDS = frozenset(
    {
        ("v1", "ConfigMap"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "ResourceQuota"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("rbac.authorization.k8s.io/v1", "RoleBinding"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("route.openshift.io/v1", "Route"),
        ("kustomize.toolkit.fluxcd.io/v1", "Kustomization"),
        ("argoproj.io/v1alpha1", "Application"),
    }
)
BASE: Mapping[str, Any] = {
    "apiVersion": service.API_VERSION,
    "kind": service.KIND,
    "metadata": {"name": "demo"},
    "spec": {"model": {"path": "/model"}},
}
"""What a patch is laid on."""


@cache
def crd() -> dict[str, Any]:
    text = (ROOT / "crds/inferenceservices.slipway.dev.yaml").read_text()
    definition: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)
    return definition


@cache
def chart_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((ROOT / "helm/slipway/values.schema.json").read_text())
    return schema


def is_manifest(text: str) -> bool:
    return text.startswith("apiVersion: ")


def check_document(text: str) -> None:
    """An InferenceService by the CRD's schema, unknown fields included, and by the operator's own rules."""
    document = yaml.safe_load(text)
    schema = json_schema(spec_schema(crd()))
    jsonschema.validate(document["spec"], schema, jsonschema.Draft7Validator)
    service.load(text)


def check_manifest(text: str) -> None:
    """A document of another kind: one of those that the pages are meant to show, and about things of ours."""
    if f"\nkind: {PROFILE_KIND}\n" in text:
        load_profile(text)
        return
    document = yaml.safe_load(text)
    assert (document["apiVersion"], document["kind"]) in FOREIGN_KINDS
    names = crd()["spec"]["names"]
    for rule in document.get("rules", ()):
        assert rule["apiGroups"] == [crd()["spec"]["group"]]
        assert {resource.split("/")[0] for resource in rule["resources"]} == {names["plural"]}
    target = document.get("spec", {}).get("scaleTargetRef")
    if target:
        assert target == {"apiVersion": service.API_VERSION, "kind": service.KIND, "name": "demo"}
        assert "scale" in crd()["spec"]["versions"][0]["subresources"]


def check_values(text: str) -> None:
    """Values of the chart slipway, by its closed schema."""
    jsonschema.validate(yaml.safe_load(text) or {}, chart_schema(), jsonschema.Draft7Validator)


def check_helm(command: str, files: Sequence[str]) -> None:
    """Release, namespace, chart and values are those that exist. `files` are what the page shows."""
    verb, *words = shlex.split(command)[1:]
    names, options = _parted(words)
    assert len(names) == HELM_VERBS[verb], command
    if verb != "package":
        assert names[0] == RELEASE
        assert options["--namespace"] in ([namespace] for namespace in RELEASE_NAMESPACES)
    for chart in names[1:] if verb != "package" else names:
        assert (ROOT / chart / "Chart.yaml").is_file(), chart
    for assignment in options.get("--set", ()):
        check_values(yaml.safe_dump(_nested(assignment)))
    if "--values" in options:
        assert any(text.startswith(VALUES) for text in files), "the page shows no values"


def check_kubectl(command: str, files: Sequence[str]) -> None:
    """Each part of a pipe: files, resources, names and fields are those that exist."""
    for part in command.replace("\\\n", " ").split(" | "):
        verb, *words = shlex.split(part)[1:]
        names, options = _parted(words)
        for name in options.get("-f", ()):
            assert name == "-" or (ROOT / name).exists(), name
        for name in options.get("--from-file", ()):
            assert (ROOT / name).is_file(), name
        for condition in options.get("--for", ()):
            assert condition.removeprefix("condition=") in CONDITIONS, condition
        for patch in options.get("--patch", ()):
            _check_patch(json.loads(patch))
        KUBECTL[verb](names, tuple(files))


def _check_patch(patch: Mapping[str, Any]) -> None:
    check_document(yaml.safe_dump(_merged(BASE, patch)))


def _check_resource(names: list[str], files: tuple[str, ...]) -> None:
    """`KIND/NAME`, `KIND,KIND` or `KIND NAME`."""
    kinds, _, name = names[0].partition("/")
    name = name or (names[1] if len(names) > 1 else "")
    for kind in kinds.split(","):
        known = RESOURCES[kind]
        assert not name or known is None or name in known | _shown(files), f"{kind} {name}"


def _check_rollout(names: list[str], files: tuple[str, ...]) -> None:
    assert names[0] in ("status", "restart"), names
    _check_resource(names[1:], files)


def _check_forward(names: list[str], files: tuple[str, ...]) -> None:
    _check_resource(names[:1], files)
    assert names[1] == "8000:8000", "the port of a Service unless the document names another"


def _check_create(names: list[str], files: tuple[str, ...]) -> None:
    """A Secret that the page's documents and values name, a ConfigMap, or a namespace of the pages."""
    if names[0] == "secret":
        assert names[1] in ("generic", "tls", "docker-registry")
        assert any(re.search(rf"[ \[]{names[2]}[],}}]", text) for text in files), names
    else:
        _check_resource(names, files)


def _check_field(names: list[str], files: tuple[str, ...]) -> None:
    """A path below the kind, as `kubectl explain` takes it."""
    kind, top, *fields = names[0].split(".")
    assert (kind, top) == (crd()["spec"]["names"]["plural"], "spec")
    node = spec_schema(crd())
    for field in fields:
        node = node["properties"][field]


def _check_files(names: list[str], files: tuple[str, ...]) -> None:
    assert not names


KUBECTL = {
    "apply": _check_files,
    "replace": _check_files,
    "get": _check_resource,
    "wait": _check_resource,
    "describe": _check_resource,
    "patch": _check_resource,
    "scale": _check_resource,
    "delete": _check_resource,
    "label": lambda names, files: _check_resource(names[:2], files),
    "logs": _check_resource,
    "rollout": _check_rollout,
    "port-forward": _check_forward,
    "create": _check_create,
    "explain": _check_field,
}

MODELS = frozenset({"demo", "llama"})
RESOURCES: dict[str, frozenset[str] | None] = {
    "inferenceservices": MODELS,
    "servingprofiles": frozenset(),
    "deployment": MODELS | {OPERATOR},
    "service": MODELS | {OPERATOR},
    "pods": frozenset(),
    "leases": frozenset({OPERATOR}),
    "node": frozenset({"NAME"}),
    "controllerrevisions": frozenset(),
    "crd": frozenset({"inferenceservices.slipway.dev"}),
    "namespace": frozenset(RELEASE_NAMESPACES),
    "configmap": frozenset({"slipway-dashboard"}),
}
"""Kind → the names that a page may use; what its own documents are called comes on top."""


def _shown(files: Sequence[str]) -> set[str]:
    return {yaml.safe_load(text)["metadata"]["name"] for text in files if is_manifest(text)}


def _parted(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Names, and options with their values. Raises AssertionError at an option that no page should need."""
    names: list[str] = []
    options: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        name, sign, value = word.partition("=")
        if name in VALUED:
            options.setdefault(name, []).append(value if sign else next(rest))
        elif word.startswith("-") and word != "-":
            assert word in FLAGS, word
        else:
            names.append(word)
    return names, options


def _nested(assignment: str) -> dict[str, Any]:
    """`a.b=c` of --set as the values that it means."""
    path, _, text = assignment.partition("=")
    listed = re.fullmatch(r"\{(.*)\}", text)
    value: Any = listed[1].split(",") if listed else yaml.safe_load(text)
    for key in reversed(path.split(".")):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def _merged(document: Any, patch: Any) -> Any:
    """By the rules of a JSON merge patch, without deletion."""
    if not isinstance(patch, Mapping) or not isinstance(document, Mapping):
        return patch
    return {**document, **{key: _merged(document.get(key), item) for key, item in patch.items()}}


def reasons_named(text: str) -> Iterator[str]:
    """The reasons that a page's tables and sentences name, among other words in code."""
    return (match[1] for match in re.finditer(r"`([A-Z][A-Za-z]+)`", text))
