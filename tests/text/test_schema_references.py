"""References: each leads to the schema that the client sent, whatever becomes of its place."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from grammars import accepts, compiled
from slipway.text import structure
from slipway.text.errors import GrammarError
from slipway.text.structure import JsonStyle

OBJECT = {"type": "object"}
Q = OBJECT | {"properties": {"q": {"type": "integer"}}, "required": ["q"]}
Z = OBJECT | {"properties": {"z": {"type": "integer"}}, "required": ["z"]}
X = {"$ref": "#/$defs/A", "allOf": [Z], "properties": {"w": {}}}


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            OBJECT
            | {"$defs": {"A": Q, "X": X}, "required": ["y"]}
            | {"properties": {"x": {"$ref": "#/$defs/X"}, "y": {"$ref": "#/$defs/X/allOf/0"}}},
            [{"y": {"z": 1}}],
            [{"y": {"q": 1}}],
        ),
        (
            OBJECT
            | {
                "properties": {
                    "r": OBJECT | {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
                    "s": {"$ref": "#/properties/r/additionalProperties"},
                }
            },
            [{"s": "x"}, {"r": {"a": 1, "b": "x"}}],
            [{"s": 1}],
        ),
        (
            {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/oneOf/0"}}]},
            [1, [1]],
            [["a"]],
        ),
        (
            OBJECT | {"properties": {"a": {"$ref": "#/anyOf/1/properties/z"}}, "anyOf": [Q, Z]},
            [{"a": 1, "z": 1}],
            [{"a": "x", "z": 1}],
        ),
        ({"$defs": {"P<X>": Q}, "$ref": "#/$defs/P%3CX%3E"}, [{"q": 1}], [{}]),
        ({"$defs": {"Page[Item]": Q}, "$ref": "#/$defs/Page[Item]"}, [{"q": 1}], [{}]),
        ({"$defs": {"a/b~c": Q}, "allOf": [{"$ref": "#/$defs/a~1b~0c"}, Z]}, [{"q": 1, "z": 1}], [{"q": 1}]),
        (
            OBJECT
            | {"properties": {"v": {"type": "integer"}, "c": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
            | {"required": ["v", "c"]},
            [{"v": 1, "c": {"v": 1, "c": None}}],
            [{"v": 1, "c": {"c": None}}],
        ),
        ({"$defs": {"A": {"$anchor": "foo"} | Q}, "$ref": "#foo"}, [{"q": 1}], [{}]),
        (
            OBJECT
            | {"$id": "http://x/y", "$defs": {"A": {"$id": "z"} | Q}}
            | {"properties": {"a": {"$ref": "z"}, "b": {"$ref": "http://x/z#/properties/q"}}},
            [{"a": {"q": 1}, "b": 3}],
            [{"a": {}}, {"b": "x"}],
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"}
            | {"definitions": {"A": Q | {"$id": "#q"}}, "$ref": "#q"},
            [{"q": 1}],
            [{}],
        ),
        (
            OBJECT | {"components": {"A": {"B": Q}}, "properties": {"a": {"$ref": "#/components/A/B"}}},
            [{"a": {"q": 1}}],
            [{"a": {}}],
        ),
    ],
    ids=str,
)
def test_a_reference_leads_to_the_schema_as_it_was_sent(
    schema: Any, good: list[Any], bad: list[Any], closed: bool
) -> None:
    matcher = compiled(structure.of_json_schema(schema, JsonStyle(additional_properties=not closed)))
    valid = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    assert all(map(valid.is_valid, good))
    assert [one for one in good if not accepts(matcher, json.dumps(one))] == []
    assert [one for one in bad if accepts(matcher, json.dumps(one))] == []


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#/$defs/a"}, "leads to #/\\$defs/a, which the schema does not have"),
        ({"$ref": "#/allOf/1", "allOf": [{}]}, "leads to #/allOf/1, which the schema does not have"),
        ({"$ref": "#/required", "required": ["a"]}, "a schema is an object, true or false"),
        ({"$ref": "#a"}, "leads to the anchor a, which the schema does not have"),
        ({"$ref": "http://x/y"}, "leads to http://x/y, and nothing is fetched"),
        ({"$id": "http://x/z", "$ref": "http://[x"}, "is not an address"),
        ({"$ref": 1}, "\\$ref is a text"),
        (
            {"properties": {str(one): {"$ref": f"#/properties/{one}/x"} for one in range(300)}}
            | {"x": {"properties": {str(one): {} for one in range(300)}}},
            "does not have",
        ),
        (
            {"items": [{"$ref": "#/x" + "/not" * one} for one in range(60)]}
            | {"x": json.loads('{"not":' * 60 + json.dumps({"items": [{}] * 2000}) + "}" * 60)},
            "more than 50,000 parts",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_reference_that_leads_nowhere_or_repeats_too_much_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiled(structure.of_json_schema(schema))
