"""The CustomResourceDefinition: everything that is declared is in it, and it agrees with the loader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import yaml

from slipway.args.schema import CAMEL
from slipway.service import InvalidService, from_mapping
from slipway.service.crd import custom_resource_definition, definition_text
from slipway.service.crd.definition import NAME_OF_SOURCE, root_schema
from slipway.service.crd.rules import CROSS_FIELD
from slipway.service.crd.structure import anchored, at, object_node
from slipway.service.crd.variables import variable_rules
from slipway.service.document import SOURCES
from slipway.service.fields import Form, camel, rest_of
from slipway.service.spec import ServiceSpec

Node = dict[str, Any]

ROOT = Path(__file__).parents[2]
FILE = ROOT / "crds" / "inferenceservices.slipway.dev.yaml"
MANIFESTS = ROOT / "e2e" / "manifests"
INVALID: list[Node] = yaml.safe_load((MANIFESTS / "invalid.yaml").read_text(encoding="utf-8"))
VALID: list[Node] = yaml.safe_load((MANIFESTS / "valid.yaml").read_text(encoding="utf-8"))
LIMIT_OF_AN_ANNOTATION = 262_144
DEFINITION = custom_resource_definition()
VERSION = DEFINITION["spec"]["versions"][0]
SCHEMA = root_schema()
SPEC = SCHEMA["properties"]["spec"]
RULES = (*CROSS_FIELD, *variable_rules())


def named(case: Node) -> str:
    return str(case["case"])


def document(case: Node) -> Node:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": case.get("name", "service")},
        "spec": case["spec"],
    }


def nodes(schema: Node, place: str = "") -> Iterator[tuple[str, Node]]:
    """Every node with its place."""
    yield place, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{place}.{name}".removeprefix("."))
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{place}[]")


def declared(cls: type, place: str) -> Iterator[str]:
    """Every field of the dataclass and of those below it, as a place."""
    types = get_type_hints(cls)
    for field in fields(cls):
        if (cls is ServiceSpec and field.name == "metadata") or field.name == (rest_of(cls) or ("",))[0]:
            continue
        here = f"{place}.{camel(field.name)}"
        yield here
        wanted = types[field.name]
        for inner, below in _within(wanted, here):
            if isinstance(inner, type) and is_dataclass(inner):
                yield from declared(inner, below)


def _within(wanted: Any, place: str) -> Iterator[tuple[Any, str]]:
    """The type itself, those that it may be, and that of its items, each with its place."""
    yield wanted, place
    if str in map(plain, get_args(wanted)):  # an object that may be a text has no schema
        return
    for inner in get_args(wanted):
        below = f"{place}[]" if get_origin(wanted) is tuple else place
        yield from _within(inner, below)


def plain(wanted: Any) -> Any:
    return get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted


def test_the_committed_file_is_what_is_generated():
    assert FILE.read_text(encoding="utf-8") == definition_text(DEFINITION), "run `make generate`"


def test_generation_is_stable():
    again = definition_text(custom_resource_definition())
    assert again == definition_text(DEFINITION)
    assert yaml.load(again, yaml.CSafeLoader) == custom_resource_definition()


def test_it_fits_into_the_annotation_of_a_plain_apply():
    assert len(json.dumps(DEFINITION)) < 0.6 * LIMIT_OF_AN_ANNOTATION


def test_every_field_of_the_document_is_in_it():
    places = {place for place, _ in nodes(SCHEMA)}
    assert set(declared(ServiceSpec, "spec")) <= places


def test_nothing_else_is_in_it():
    known = set(declared(ServiceSpec, "spec"))
    for place, _ in nodes(SPEC, "spec"):
        if "." in place and not place.startswith("spec.engine.") and not place.endswith("[]"):
            assert place in known


def test_every_argument_is_in_it():
    assert set(SPEC["properties"]["engine"]["properties"]) == set(CAMEL)


def test_every_field_is_described():
    """Keys of an argument that is an object are another manual's."""
    without = [
        place
        for place, node in nodes(SPEC, "spec")
        if node.get("description", "Default").startswith("Default")
        and not place.endswith("[]")
        and not re.match(r"spec\.engine\.\w+(\[\])?\.", place)
    ]
    assert without == []


def test_names_are_written_in_camel_case():
    for place, _ in nodes(SPEC, "spec"):
        if not place.startswith("spec.engine."):
            assert re.fullmatch(r"[a-z][a-zA-Z0-9.\[\]]*", place)


def test_no_argument_has_a_default():
    assert not [place for place, node in nodes(SPEC["properties"]["engine"]) if "default" in node]


def test_of_the_specification_only_the_replicas_have_a_default():
    assert [place for place, node in nodes(SPEC) if "default" in node] == ["replicas"]


def test_an_untouched_resource_has_not_been_observed():
    assert SCHEMA["properties"]["status"]["default"] == {"observedGeneration": -1}


def test_every_text_and_every_list_has_a_bound():
    for place, node in nodes(SPEC, "spec"):
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node, place
        if node.get("type") == "array":
            assert node["maxItems"] <= 256, place


def test_bounds_are_numbers_that_a_double_holds():
    """The API server reads them as doubles; one of 2⁶³ would wrap and refuse every number."""
    for place, node in nodes(SCHEMA):
        for bound in ("minimum", "maximum"):
            assert abs(node.get(bound, 0)) < 2**53, place


def test_lists_of_things_with_a_key_merge_by_it():
    merged = {
        place: node["x-kubernetes-list-map-keys"]
        for place, node in nodes(SCHEMA)
        if node.get("x-kubernetes-list-type") == "map"
    }
    assert merged == {
        "spec.env": ["name"],
        "spec.files": ["mountPath"],
        "spec.volumes": ["name"],
        **{
            f"spec.{containers}{below}": [key]
            for containers in ("initContainers", "sidecars")
            for below, key in (("", "name"), ("[].env", "name"), ("[].volumeMounts", "mountPath"))
        },
        "spec.scheduling.hostAliases": ["ip"],
        "status.conditions": ["type"],
    }


def test_rules_stand_at_places_that_exist_and_read_fields_that_exist():
    for rule in RULES:
        here = at(SCHEMA, rule.place)
        for path in re.findall(r"self((?:\.[a-z][A-Za-z0-9]*)+)(?!\w*\()", rule.cel):
            # CEL knows no field whose type the schema leaves open.
            assert {"type", "x-kubernetes-int-or-string"} & at(here, path.removeprefix(".")).keys()
            assert at(here, path.removeprefix(".")).get("items", {"type": ""}).keys() & {
                "type",
                "x-kubernetes-int-or-string",
            }
        if rule.field:
            at(here, rule.field.removeprefix("."))


def test_every_rule_says_what_to_change():
    for rule in RULES:
        assert len(rule.message) > 20
        assert "\n" not in rule.message
        assert len(rule.message) < 2048


def test_a_form_that_looks_around_is_refused_where_it_is_declared():
    with pytest.raises(ValueError, match="RE2"):
        anchored(Form(r"/(?!\.\.).*", "an absolute path"))


def test_forms_mean_the_same_to_the_loader_and_to_the_rule():
    assert anchored(Form("a|b", "a or b")) == "^(a|b)$"


def test_every_source_of_a_model_has_its_column():
    assert tuple(NAME_OF_SOURCE) == SOURCES
    for path in NAME_OF_SOURCE.values():
        assert at(SPEC["properties"]["model"], path)["type"] == "string"


def test_the_columns_are_those_of_the_manual():
    columns = {column["name"]: column.get("priority", 0) for column in VERSION["additionalPrinterColumns"]}
    assert columns == {
        "MODEL": 0,
        "READY": 0,
        "REASON": 0,
        "URL": 0,
        "AGE": 0,
        "IMAGE": 1,
        "REPLICAS": 1,
    }


def test_an_autoscaler_finds_what_it_reads():
    for path in VERSION["subresources"]["scale"].values():
        assert at(SCHEMA, path.removeprefix("."))["type"] in ("integer", "string")


def test_names_are_those_of_the_group():
    assert DEFINITION["metadata"]["name"] == "inferenceservices.slipway.dev"
    assert DEFINITION["spec"]["names"]["shortNames"] == ["slip"]
    assert DEFINITION["spec"]["names"]["categories"] == ["slipway"]
    assert DEFINITION["spec"]["conversion"] == {"strategy": "None"}


def test_a_dataclass_without_words_gets_none_of_its_signature():
    assert "(" not in object_node(ServiceSpec, without=frozenset({"metadata"}))["description"]


def test_there_are_enough_cases():
    assert len(INVALID) >= 60
    assert len(VALID) >= 20
    assert len({case["case"] for case in (*INVALID, *VALID)}) == len(INVALID) + len(VALID)


@pytest.mark.parametrize("case", INVALID, ids=named)
def test_what_the_api_server_refuses_the_loader_refuses(case: Node):
    with pytest.raises(InvalidService):
        from_mapping(document(case))


@pytest.mark.parametrize("case", VALID, ids=named)
def test_what_the_api_server_takes_the_loader_takes(case: Node):
    from_mapping(document(case))
