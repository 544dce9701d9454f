"""What a real API server stores of an apply needs no other, and what its users change is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.ground.control_plane import ControlPlane
from e2e.operators import defined, service
from slipway.service import Facts, ServiceSpec, from_mapping, render
from slipway.service.differences import ATOMIC_MAPS, merge_keys
from slipway.service.facts import Owner
from slipway.service.pod import pod_template
from slipway_operator.drift import foreign_env, needs_apply
from slipway_operator.template_pin import pin

Object = dict[str, Any]

ROOT = Path(__file__).parents[1]
MANAGER = "slipway-operator"
NAMESPACE = "differences"
FACTS = Facts(namespace=NAMESPACE)
AWKWARD: Object = {
    "resources": {
        "cpu": "2000m",
        "memory": "1024Mi",
        "sharedMemory": "2048Mi",
        "ephemeralStorage": "1000000000",
    },
    "env": [{"name": "EMPTY", "value": ""}, {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}],
    "scheduling": {
        "nodeSelector": {},
        "affinity": {"nodeAffinity": {}, "podAntiAffinity": {}},
        "tolerations": [{"key": "", "operator": "Exists"}, {"key": "a", "operator": "Equal", "value": ""}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        ],
    },
    "service": {"annotations": {"empty": ""}, "labels": {"empty": ""}},
    "replicas": 2,
}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.kubectl("create", "namespace", NAMESPACE)
    with defined(control_plane):
        yield control_plane


def spec_of(name: str, document: Object) -> ServiceSpec:
    metadata = {"name": name, "labels": document.get("metadata", {}).get("labels", {})}
    return from_mapping({**document, "metadata": metadata})


def documents() -> dict[str, Object]:
    own = (ROOT / "tests" / "service" / f"{name}.yaml" for name in ("everything", "beside"))
    files = [*own, *sorted((ROOT / "examples").glob("*.yaml"))]
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in files}
    found = {name: one for name, one in found.items() if one.get("kind") == "InferenceService"}
    demo = found["everything"]
    plain = {"model": {"path": "/models/demo"}, **AWKWARD}
    return {**found, "awkward": {**demo, "spec": plain}}


DOCUMENTS = documents()


def objects(name: str, document: Object, facts: Facts = FACTS) -> list[Object]:
    """What is rendered, but for owners that are not there: the garbage collector would take it at once."""
    spec = spec_of(name, document)
    revision = pin(spec, facts, None, pod_template).revision
    return [revision, *render(spec, facts)]


def apply(plane: ControlPlane, item: Object) -> None:
    plane.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        f"--field-manager={MANAGER}",
        "-f",
        "-",
        input=json.dumps(item),
    )


def live(plane: ControlPlane, item: Object) -> Object:
    kind, name = item["kind"].lower(), item["metadata"]["name"]
    printed = plane.kubectl("get", kind, name, "-n", NAMESPACE, "-o", "json", "--show-managed-fields")
    found: Object = json.loads(printed)
    return found


def deployment(plane: ControlPlane, name: str) -> Object:
    item = next(one for one in objects(name, DOCUMENTS["awkward"]) if one["kind"] == "Deployment")
    item["spec"]["replicas"] = 0
    apply(plane, item)
    return item


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_was_applied_needs_no_apply(plane: ControlPlane, name: str) -> None:
    for item in objects(name, DOCUMENTS[name]):
        assert needs_apply(item, None, MANAGER) is not None
        apply(plane, item)
        assert needs_apply(item, live(plane, item), MANAGER) is None


def resolved(node: Object, schemas: Object) -> Object:
    """The schema behind a reference, with what stands beside that."""
    for one in (node, *node.get("allOf", ())):
        if "$ref" in one:
            return {**schemas[one["$ref"].rpartition("/")[2]], **node}
    return node


def fields(
    node: Object, schemas: Object, within: tuple[str, ...] = ()
) -> Iterator[tuple[str, Object, Object]]:
    """Every field below a schema: its name, its schema, and that of its items where it is a list. Of what
    holds itself, once."""
    for name, field in node.get("properties", {}).items():
        field = resolved(field, schemas)
        items = resolved(field.get("items", {}), schemas)
        yield name, field, items
        for inner in (field, items):
            known = ",".join(inner.get("properties", {}))
            if known not in within:
                yield from fields(inner, schemas, (*within, known))


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("apis/apps/v1", "Deployment"),
        ("apis/apps/v1", "ControllerRevision"),
        ("apis/policy/v1", "PodDisruptionBudget"),
        ("api/v1", "Service"),
    ],
)
def test_lists_and_maps_are_merged_as_the_server_says(plane: ControlPlane, place: str, kind: str) -> None:
    schemas = json.loads(plane.kubectl("get", "--raw", f"/openapi/v3/{place}"))["components"]["schemas"]
    whole = next(
        one
        for one in schemas.values()
        if any(known["kind"] == kind for known in one.get("x-kubernetes-group-version-kind", ()))
    )
    without_status = {**whole, "properties": {k: v for k, v in whole["properties"].items() if k != "status"}}
    atomic: dict[str, set[bool]] = {}
    lists = 0
    for name, field, items in fields(without_status, schemas):
        if field.get("type") == "array":
            by_key = field.get("x-kubernetes-list-type") == "map"
            keys = field["x-kubernetes-list-map-keys"] if by_key else []
            assert {*merge_keys((name,), [items.get("properties", {})])} == {*keys}, name
            lists += by_key
        elif field.get("type") == "object":
            atomic.setdefault(name, set()).add(field.get("x-kubernetes-map-type") == "atomic")
    assert lists
    # Two types have a field of this name, which we never render.
    assert {name for name, said in atomic.items() if len(said) > 1} <= {"secretRef"}
    assert {name for name in atomic if name in ATOMIC_MAPS} == {n for n in atomic if atomic[n] == {True}}


def test_a_restart_and_an_annotation_are_left_alone(plane: ControlPlane) -> None:
    item = deployment(plane, "restarted")
    plane.kubectl("rollout", "restart", "deployment/restarted", "-n", NAMESPACE)
    plane.kubectl("annotate", "deployment/restarted", "note=text", "-n", NAMESPACE)
    assert needs_apply(item, live(plane, item), MANAGER) is None


def test_a_foreign_variable_is_named_and_left_alone(plane: ControlPlane) -> None:
    item = deployment(plane, "drifted")
    plane.kubectl("set", "env", "deployment/drifted", "VLLM_FOO=1", "OTHER=2", "-n", NAMESPACE)
    found = live(plane, item)
    assert foreign_env(found, MANAGER) == ["VLLM_FOO"]
    assert needs_apply(item, found, MANAGER) is None


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (("set", "image", "deployment/{0}", "server=x:2"), "containers[server].image is x:2"),
        (("scale", "deployment/{0}", "--replicas=5"), "spec.replicas is 5 and should be 0"),
        (("set", "env", "deployment/{0}", "VLLM_LOGGING_LEVEL-"), "env[VLLM_LOGGING_LEVEL] is absent"),
        (("set", "resources", "deployment/{0}", "--limits=memory=9Gi"), "limits.memory is 9Gi"),
        (
            ("label", "deployment/{0}", "app.kubernetes.io/name-"),
            "metadata.labels.app.kubernetes.io/name is absent",
        ),
    ],
)
def test_what_a_user_changed_is_found_and_mended(
    plane: ControlPlane, change: tuple[str, ...], part: str
) -> None:
    name = f"edited-{change[1]}".replace("deployment/{0}", change[0])
    item = deployment(plane, name)
    plane.kubectl(*(word.format(name) for word in change), "-n", NAMESPACE)
    assert part in (needs_apply(item, live(plane, item), MANAGER) or "")
    apply(plane, item)
    assert needs_apply(item, live(plane, item), MANAGER) is None


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (("metadata", "labels", "app.kubernetes.io/managed-by"), "app.kubernetes.io/managed-by"),
        (("spec", "template", "spec", "tolerations"), "spec.template.spec.tolerations"),
        (("spec", "template", "spec", "securityContext", "runAsNonRoot"), "securityContext.runAsNonRoot"),
        (("spec", "template", "spec", "topologySpreadConstraints", 0), "topologySpreadConstraints[zone/"),
        (("spec", "template", "spec", "containers", 0, "env", 0), "containers[server].env["),
        (("spec", "template", "spec", "containers", 0, "resources", "limits", "cpu"), "limits.cpu"),
        (("spec", "template", "spec", "volumes", 0, "emptyDir", "sizeLimit"), ".emptyDir.sizeLimit"),
    ],
)
def test_what_is_rendered_no_more_is_found_and_taken_away(
    plane: ControlPlane, path: tuple[str | int, ...], part: str
) -> None:
    item = deployment(plane, "lessened")
    less: Any = copy.deepcopy(item)
    parent = less
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    sentence = needs_apply(less, live(plane, item), MANAGER) or ""
    assert part in sentence
    assert "should go" in sentence
    apply(plane, less)
    assert needs_apply(less, live(plane, less), MANAGER) is None


def test_a_stranger_s_key_in_a_service_s_selector_is_found(plane: ControlPlane) -> None:
    item = next(one for one in objects("selecting", DOCUMENTS["awkward"]) if one["kind"] == "Service")
    apply(plane, item)
    plane.kubectl(
        "patch", "service", "selecting", "-n", NAMESPACE, "-p", '{"spec":{"selector":{"version":"2"}}}'
    )
    assert "spec.selector.version" in (needs_apply(item, live(plane, item), MANAGER) or "")


def test_an_owner_is_kept_as_it_was_applied(plane: ControlPlane) -> None:
    # A real one: the garbage collector takes what belongs to nobody.
    owner = service("owned")
    plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(owner))
    printed = json.loads(plane.kubectl("get", "slip", "owned", "-n", NAMESPACE, "-o", "json"))
    facts = Facts(namespace=NAMESPACE, owner=Owner("owned", printed["metadata"]["uid"]))
    for item in objects("owned", DOCUMENTS["awkward"], facts):
        apply(plane, item)
        found = live(plane, item)
        assert needs_apply(item, found, MANAGER) is None
