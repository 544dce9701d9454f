"""The charts' generated parts, and the templates that use them; Helm itself runs under e2e/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError, validate

from slipway import __version__
from slipway.args.schema import CAMEL
from slipway.service import chart_values, charts
from slipway.service.crd import custom_resource_definition, definitions
from slipway.service.facts import ClusterFacts
from slipway.service.fields import camel
from slipway_operator import permissions
from slipway_operator.settings import Settings, read_settings

REPOSITORY = Path(__file__).resolve().parents[2]
HELM = REPOSITORY / "helm"
CHARTS = ("slipway", "slipway-model")
GOLDEN = [
    path for path in sorted((REPOSITORY / "e2e/helm/golden").glob("*.yaml")) if "model-" not in path.name
]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
CRD = custom_resource_definition()
RULES = {
    "service": [rule.as_object() for rule in permissions.SERVICE_RULES],
    "cluster": [rule.as_object() for rule in permissions.CLUSTER_RULES],
    "lease": [rule.as_object() for rule in permissions.LEASE_RULES],
}


def schema_of(chart: str) -> dict[str, Any]:
    return json.loads((HELM / chart / "values.schema.json").read_text(encoding="utf-8"))


def values_of(chart: str) -> dict[str, Any]:
    return yaml.safe_load((HELM / chart / "values.yaml").read_text(encoding="utf-8"))


def nodes(schema: Mapping[str, Any], path: str = "values") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each schema below `schema` that describes a value, with the value's path."""
    yield path, schema
    for name, node in schema.get("properties", {}).items():
        yield from nodes(node, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from nodes(schema[key], f"{path}[]")


@pytest.mark.parametrize(("path", "content"), charts.outputs(definitions(), RULES).items())
def test_generated_parts_are_what_generate_writes(path, content):
    assert (REPOSITORY / path).read_text(encoding="utf-8") == content, (
        f"{path} is stale: run `make generate`."
    )


def test_the_charts_of_a_released_version_name_its_images_by_digest():
    digest = f"sha256:{'0' * 64}"
    of_this, of_another = {__version__: {"slipway/operator": digest}}, {"0.0.0": {"slipway/operator": digest}}
    named = chart_values.image("", "slipway/operator", of_this).members["digest"]
    assert named.default == digest
    assert re.fullmatch(named.schema["pattern"], digest)
    assert chart_values.image("", "slipway/operator", of_another).members["digest"].default == ""
    assert chart_values.image("", "slipway/runtime-cpu", of_this).members["digest"].default == ""


def test_released_versions_have_the_digest_of_each_image():
    for digests in chart_values.RELEASED.values():
        assert digests.keys() == {"slipway/operator", "slipway/runtime-cpu", "slipway/runtime-cuda"}


@pytest.mark.parametrize("chart", CHARTS)
def test_the_schema_is_json_schema_and_closed(chart):
    schema = schema_of(chart)
    Draft7Validator.check_schema(schema)
    for path, node in nodes(schema):
        if "properties" in node and path != "values.global":
            opened = node.get("additionalProperties") is not False
            assert not opened or path in open_paths(), f"{path} takes fields that nobody declared."


def open_paths() -> set[str]:
    """Fields of the spec that the CRD itself leaves open."""
    return {
        path.replace("spec", "values", 1)
        for path, node in nodes(charts.spec_schema(CRD), "spec")
        if node.get("x-kubernetes-preserve-unknown-fields")
    }


def test_every_value_of_the_operators_chart_is_described():
    for path, node in nodes(schema_of("slipway")):
        if not path.endswith("[]"):
            assert len(node.get("description", "")) > 10, f"{path} has no description."


def test_every_description_of_the_crd_is_in_the_schema_of_a_model():
    described = dict(nodes(schema_of("slipway-model")))
    assert all(described[f"values.engine.{name}"]["description"] for name in CAMEL)
    for path, node in nodes(charts.spec_schema(CRD)):
        if path != "values":
            assert described[path].get("description") == node.get("description")


@pytest.mark.parametrize("chart", CHARTS)
def test_patterns_are_of_the_kind_that_helm_reads(chart):
    """Helm is written in Go, whose expressions have no look-around and no back-references."""
    for path, node in nodes(schema_of(chart)):
        pattern = node.get("pattern", "")
        assert not re.search(r"\(\?[=!<]|\\[1-9]", pattern), f"{path}: {pattern}"


def test_the_defaults_keep_their_own_schema():
    validate(values_of("slipway"), schema_of("slipway"))
    validate(values_of("slipway-model") | {"model": {}}, schema_of("slipway-model") | {"required": []})


@pytest.mark.parametrize(
    "typo",
    [
        {"crd": {"install": False}},
        {"crds": {"instal": False}},
        {"namespaces": "team-a"},
        {"namespaces": ["Team_A"]},
        {"image": {"digest": "sha256:123"}},
        {"replicas": 9},
        {"policy": {"allowCode": "yes"}},
        {"monitoring": {"serviceMonitor": {"interval": "often"}}},
    ],
    ids=str,
)
def test_a_wrong_value_of_the_operators_chart_is_refused(typo):
    with pytest.raises(ValidationError):
        validate(values_of("slipway") | typo, schema_of("slipway"))


@pytest.mark.parametrize(
    "typo",
    [
        {},
        {"modle": {}},
        {"model": {"hubb": {}}},
        {"engine": {"maxModelLenn": 1}},
        {"engine": {"gpuMemoryUtilization": 1.5}},
        {"replicas": "two"},
    ],
    ids=str,
)
def test_a_wrong_value_of_a_model_is_refused(typo):
    base = {} if not typo else {"model": {"hub": {"id": "org/name"}}}
    with pytest.raises(ValidationError):
        validate(values_of("slipway-model") | base | typo, schema_of("slipway-model"))


@pytest.mark.parametrize(
    "example", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_spec_of_each_example_is_a_set_of_values(example):
    for document in yaml.safe_load_all(example.read_text(encoding="utf-8")):
        if document and document["kind"] == "InferenceService":
            validate(values_of("slipway-model") | document["spec"], schema_of("slipway-model"))


def declared(members: Mapping[str, chart_values.Value | chart_values.Group], path: str = "") -> Iterator[str]:
    for name, member in members.items():
        match member:
            case chart_values.Group():
                yield from declared(member.members, f"{path}.{name}")
            case chart_values.Value():
                yield f"{path}.{name}"


def test_templates_use_every_value_and_no_other():
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in sorted((HELM / "slipway" / "templates").rglob("*"))
        if path.is_file()
    )
    used = set(re.findall(r"\.Values((?:\.\w+)+)", text))
    for path in declared(chart_values.OPERATOR.members):
        assert any(path == one or path.startswith(f"{one}.") for one in used), f"no template reads {path}"
    known = {*declared(chart_values.OPERATOR.members)}
    groups = {one for path in known for one in prefixes(path)}
    assert used <= known | groups


def test_the_chart_writes_each_setting_of_the_operator_once():
    text = (HELM / "slipway" / "templates" / "_settings.tpl").read_text(encoding="utf-8")
    declared = [camel(one.name) for part in (Settings, ClusterFacts) for one in fields(part)]
    assert sorted(re.findall(r"^ *(\w+):", text, re.MULTILINE)) == sorted(declared)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_operator_reads_what_the_chart_writes(golden):
    documents = [one for one in yaml.safe_load_all(golden.read_text(encoding="utf-8")) if one]
    (written,) = (one["data"] for one in documents if "settings.yaml" in one.get("data", ()))
    settings = read_settings(yaml.safe_dump(written["settings.yaml"]))
    assert settings.lease_namespace == "slipway-system"
    assert settings.health_port == 8080


def prefixes(path: str) -> Iterator[str]:
    parts = path.split(".")
    for length in range(2, len(parts)):
        yield ".".join(parts[:length])


def test_the_charts_have_the_version_of_the_package():
    for chart in CHARTS:
        about = yaml.safe_load((HELM / chart / "Chart.yaml").read_text(encoding="utf-8"))
        assert (about["apiVersion"], about["name"]) == ("v2", chart)
        assert (about["version"], about["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("place", charts.PLACES)
def test_the_charts_rules_are_the_operators_permissions(place):
    text = (HELM / "slipway" / "files" / f"rules-{place}.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == RULES[place]


def test_no_rule_has_a_wildcard_or_reads_secrets():
    for rule in [rule for place in RULES.values() for rule in place]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert not {"secrets", "pods/exec"} & {*rule["resources"]}


@pytest.mark.parametrize("crd", definitions(), ids=lambda crd: crd["metadata"]["name"])
def test_the_crds_in_the_chart_are_the_crds(crd):
    text = (HELM / "slipway" / "files" / "crds" / f"{crd['metadata']['name']}.yaml").read_text(
        encoding="utf-8"
    )
    assert yaml.load(text, yaml.CSafeLoader)["spec"] == crd["spec"]


@pytest.mark.parametrize(
    ("openapi", "expected"),
    [
        (
            {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        ),
        (
            {"type": "string", "nullable": True, "enum": ["a"]},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        ({"type": "integer", "format": "int64", "default": 1}, {"type": "integer"}),
        ({"x-kubernetes-int-or-string": True}, {"type": ["integer", "string"]}),
        ({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, {"type": "object"}),
        (
            {"type": "array", "items": {"type": "object", "properties": {"format": {"type": "string"}}}},
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"format": {"type": "string"}},
                    "additionalProperties": False,
                },
            },
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "x-kubernetes-preserve-unknown-fields": True,
            },
            {"type": "object", "properties": {"a": {"type": "string"}}},
        ),
        (
            {"type": "object", "properties": {}, "x-kubernetes-validations": [{"rule": "true"}]},
            {"type": "object", "properties": {}, "additionalProperties": False},
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_openapi_becomes_json_schema(openapi, expected):
    assert charts.json_schema(openapi) == expected


def test_a_field_of_the_spec_never_hides_a_value_of_the_chart():
    crd = json.loads(json.dumps(CRD))
    charts.spec_schema(crd)["properties"]["labels"] = {"type": "object"}
    with pytest.raises(ValueError, match=r"spec\.labels"):
        charts.model_schema(crd)
