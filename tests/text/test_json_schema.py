"""Schemas: what compiles accepts nothing that is invalid, and what does not compile says why."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from grammars import accepts, compiled
from schemas import official, tool_schemas
from slipway.text import structure
from slipway.text.errors import GrammarError
from slipway.text.structure import JsonStyle


def takes(schema: Any, *instances: Any, style: JsonStyle = structure.JSON) -> list[bool]:
    matcher = compiled(structure.of_json_schema(schema, style))
    return [accepts(matcher, json.dumps(one, ensure_ascii=False)) for one in instances]


@pytest.mark.parametrize(("draft", "groups", "least"), [("draft7", 254, 183), ("draft2020-12", 368, 214)])
def test_the_official_suites_invalid_instances_are_not_written(draft: str, groups: int, least: int) -> None:
    """Required tests alone. What does not compile is refused with a reason."""
    seen = good = 0
    reasons: list[str] = []
    for group in official(draft):
        seen += 1
        try:
            matcher = compiled(structure.of_json_schema(group["schema"]))
        except GrammarError as error:
            reasons.append(str(error))
            continue
        good += 1
        for case in group["tests"]:
            written = accepts(matcher, json.dumps(case["data"], ensure_ascii=False))
            assert case["valid"] or not written, (group["description"], case)
    assert seen == groups
    assert good >= least
    assert all(len(reason) > 10 for reason in reasons)


@pytest.mark.slow
def test_of_500_tools_that_pydantic_makes_490_compile_and_write_valid_arguments() -> None:
    chance = random.Random(7)
    bad: dict[str, str] = {}
    for schema in tool_schemas(500):
        try:
            matcher = compiled(structure.of_json_schema(schema))
        except GrammarError as error:
            bad[json.dumps(schema)] = str(error)
            continue
        text = wandered(matcher, chance)
        if text is not None:
            jsonschema.validate(json.loads(text), schema)
    assert len(bad) <= 10, bad


def wandered(matcher: LLMatcher, chance: random.Random, most: int = 400) -> str | None:
    """A text of the grammar, drawn byte by byte; None where it has not ended after so many."""
    matcher = matcher.deep_copy()
    found = bytearray()
    for _ in range(most):
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if matcher.is_accepting() and (not allowed or chance.random() < 0.5):
            return found.decode()
        closing = [byte for byte in allowed if byte in b'"}],']
        byte = chance.choice(closing if closing and chance.random() < 0.6 else allowed)
        assert matcher.consume_token(byte)
        found.append(byte)
    return None


CONSTANTS = st.sampled_from([1, 2.0, 2, "a", "b", None, True, [1], {"x": 1}])
SIMPLE = st.one_of(
    st.sampled_from([{"type": name} for name in ("string", "integer", "number", "boolean", "null", "array")]),
    st.lists(CONSTANTS, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    CONSTANTS.map(lambda value: {"const": value}),
    st.just({"type": ["string", "integer"]}),
)
OBJECTS = st.builds(
    lambda properties, required, others: {"properties": properties, "required": sorted(required)} | others,
    st.dictionaries(st.sampled_from("kxy"), SIMPLE, max_size=3),
    st.sets(st.sampled_from("kxy"), max_size=2),
    st.fixed_dictionaries({}, optional={"type": st.just("object"), "additionalProperties": st.just(False)}),
)
PLAIN = st.one_of(SIMPLE, OBJECTS, st.sampled_from(["A", "B"]).map(lambda name: {"$ref": f"#/$defs/{name}"}))
BRANCHES = st.one_of(
    PLAIN,
    st.builds(
        lambda keyword, several, beside: {keyword: several} | beside,
        st.sampled_from(["allOf", "anyOf", "oneOf"]),
        st.lists(PLAIN, min_size=1, max_size=2),
        st.just({}) | SIMPLE | OBJECTS,
    ),
)
INSTANCES = st.one_of(CONSTANTS, st.dictionaries(st.sampled_from("kxy"), CONSTANTS, max_size=3))


@given(
    st.lists(BRANCHES, min_size=1, max_size=4),
    OBJECTS,
    SIMPLE,
    st.lists(INSTANCES, min_size=20, max_size=20),
    st.sampled_from([{}, {"type": "object"}]),
)
@settings(max_examples=300)
def test_one_of_accepts_nothing_that_is_of_two_branches(
    branches: list[Any], a: Any, b: Any, instances: list[Any], around: Any
) -> None:
    schema = around | {"oneOf": branches, "$defs": {"A": a, "B": b}}
    try:
        matcher = compiled(structure.of_json_schema(schema))
    except GrammarError:
        return
    valid = jsonschema.Draft202012Validator(schema)
    for instance in instances:
        if accepts(matcher, json.dumps(instance)):
            valid.validate(instance)


def test_one_of_is_followed_where_its_branches_can_be_told_apart() -> None:
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}, "n": {"type": "integer"}}}
    dog = {"type": "object", "properties": {"kind": {"enum": ["dog", "pup"]}, "n": {"type": "integer"}}}
    schema = {"oneOf": [{"$ref": "#/$defs/cat"}, dog, {"type": "null"}], "$defs": {"cat": cat}}
    found = takes(schema, {"kind": "cat", "n": 1}, {"kind": "pup"}, None, {"n": 1}, {"kind": "x"}, 1)
    assert found == [True, True, True, False, False, False]
    with pytest.raises(GrammarError, match=r"more than one branch, such as 0 and 1.*const values"):
        structure.of_json_schema({"oneOf": [{"type": "integer"}, {"minimum": 2}]})
    # A reference's siblings count since draft 2019-09, and not before.
    siblings = {"oneOf": [{"$ref": "#/$defs/any", "const": 1}, {"const": 2}], "$defs": {"any": {}}}
    assert takes(siblings, 1, 2, 3) == [True, True, False]
    with pytest.raises(GrammarError):
        structure.of_json_schema({"$schema": "http://json-schema.org/draft-07/schema#"} | siblings)


X_ONLY = {"type": "object", "properties": {"x": {}}, "required": ["x"], "additionalProperties": False}
Y_ONLY = {"type": "object", "properties": {"y": {}}, "required": ["y"], "additionalProperties": False}
KIND_A = {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}
KIND_B = {"properties": {"kind": {"const": "b"}}, "required": ["kind"]}
LETTERS, NUMBERS = [{"const": "a"}, {"const": "b"}], [{"const": 1}, {"const": 2}]
OPTIONAL_INTEGER = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"oneOf": [OPTIONAL_INTEGER, {"type": "string"}]}, [1, None, "a"], [True]),
        ({"oneOf": [{"oneOf": LETTERS}, {"oneOf": NUMBERS}]}, ["a", 1], ["c", 3]),
        ({"oneOf": [X_ONLY, Y_ONLY]}, [{"x": 1}, {"y": 1}], [{}, {"x": 1, "y": 1}]),
        (
            {"type": "object", "properties": {"x": {}, "y": {}}}
            | {"oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
            [{"x": 1}, {"y": 1}],
            [{}, {"x": 1, "y": 1}],
        ),
        ({"type": "object", "oneOf": [KIND_A, KIND_B]}, [{"kind": "a"}, {"kind": "b"}], [{"kind": "c"}, {}]),
    ],
    ids=str,
)
def test_branches_of_one_of_are_told_apart_by_what_is_within_and_around_them(
    schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    assert takes(schema, *valid, *invalid) == [True] * len(valid) + [False] * len(invalid)


def test_an_alternative_with_look_around_is_left_out_where_another_remains() -> None:
    decimal = {"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}
    for keyword in ("anyOf", "oneOf"):
        assert takes({keyword: [{"type": "number"}, decimal, NULL]}, 1.5, None, "1.5") == [True, True, False]
        with pytest.raises(GrammarError, match="look-around"):
            compiled(structure.of_json_schema({keyword: [decimal]}))


NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "minLength": 2.0, "format": "file-path"}, ["ab"], ["a"]),
        ({"minimum": 2, "exclusiveMinimum": True, "type": "integer"}, [3], [2, 1]),
        ({"minimum": 2, "exclusiveMinimum": False, "type": "integer"}, [2], [1]),
        ({"type": "array", "uniqueItems": False}, [[1, 1]], [1]),
        ({"propertyNames": {"enum": ["a", "b"]}, "type": "object"}, [{"a": 1}, {}], [{"c": 1}]),
        (
            {"propertyNames": {"pattern": "^x"}, "additionalProperties": NULL},
            [{"xy": None}],
            [{"y": None}, {"x": 1}],
        ),
        (
            {"propertyNames": {"maxLength": 2}, "unevaluatedProperties": NULL},
            [{"\nx": None}],
            [{"abc": None}, {"a": 1}],
        ),
        ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"if": {"type": "string"}, "type": "integer"}, [1], ["a"]),
        ({"then": False, "minContains": 3, "not": False, "dependentRequired": {}}, [1], []),
        ({"type": "object", "x-guidance": {"lenient": True}, "required": ["a"]}, [{"a": 1}], [{}]),
        (True, [1, None, {}], []),
        ('{"type": "boolean"}', [True], [1]),
    ],
    ids=str,
)
def test_what_says_nothing_is_left_out_and_what_can_be_said_otherwise_is(
    schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    assert takes(schema, *valid, *invalid) == [True] * len(valid) + [False] * len(invalid)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {
                "$defs": {
                    "a": {"type": "object", "properties": {"n": {"$ref": "#/$defs/a"}}, "required": ["n"]}
                },
                "properties": {"k": {"$ref": "#/$defs/a"}},
            },
            "requires itself again",
        ),
        ({"not": {}}, "no grammar can hold the keyword not"),
        ({"uniqueItems": True}, "uniqueItems"),
        (False, "no value is valid by the schema: a part of it"),
        ({"items": {"$ref": "#/$defs/a", "$id": "b"}}, "different drafts"),
        ({"items": 3}, "a schema is an object, true or false, and not 3"),
        ("{", "not valid JSON"),
        ({"oneOf": 3}, "oneOf is a list"),
        ({"oneOf": [{}] * 257}, "at most 256"),
        (json.loads('{"items":' * 70 + "{}" + "}" * 70), "64 levels"),
        ({"enum": ["x" * 1000] * 300}, "256 Ki"),
        ({"format": {}}, "format"),
        ({"format": ["date"]}, "format"),
        ({"oneOf": [{"type": "string"}], "anyOf": [{}], "allOf": 5}, "allOf is a list of schemas, and not 5"),
        ({"prefixItems": "ab"}, "prefixItems is a list"),
        ({"propertyNames": {"minLength": "1}|x{"}}, "propertyNames"),
        ('{"const":' + "[" * 500 + "]" * 500 + "}", "200 levels"),
        ('{"oneOf":[{"const":' + "[" * 990 + "]" * 990 + "}]}", "200 levels|recursion"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiled(structure.of_json_schema(schema))


A = {"$ref": "#/$defs/A"}
LINK = {"properties": {"c": A}, "required": ["c"]}
B_OR_C = {
    "A": {"anyOf": [{"$ref": "#/$defs/B"}, {"$ref": "#/$defs/C"}]},
    "B": {"type": "object"} | LINK,
    "C": {"type": "array", "items": A, "minItems": 1},
}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]},
        {"$ref": "#"},
        {"$defs": {"A": {"type": ["object"]} | LINK}} | A,
        {"$defs": {"A": {"type": ["object", "array"], "minItems": 1, "items": A} | LINK}} | A,
        {"$defs": {"A": {"type": "object", "allOf": [LINK]}}} | A,
        {"$defs": {"A": {"type": "object", "required": ["c"], "additionalProperties": A}}} | A,
        {"$defs": B_OR_C} | A,
        {"$defs": {"A": {"type": "array", "prefixItems": [A], "minItems": 1}}} | A,
        {"$defs": {"A": {"type": "array", "prefixItems": [{}], "items": A, "minItems": 2}}} | A,
    ],
    ids=str,
)
def test_a_schema_of_which_no_value_ends_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="requires itself again, so that no value has an end"):
        structure.of_json_schema(schema)


@pytest.mark.parametrize(
    ("schema", "valid"),
    [
        ({"type": "object", "properties": {"c": {"$ref": "#"}}}, {"c": {"c": {}}}),
        ({"$defs": {"A": {"type": ["object", "null"]} | LINK}} | A, {"c": {"c": None}}),
        ({"$defs": B_OR_C | {"C": {"type": "array", "items": A}}} | A, {"c": [[], {"c": []}]}),
        ({"$defs": {"A": {"type": "array", "prefixItems": [{}, A], "minItems": 1}}} | A, [1, [2]]),
        ({"$defs": {"A": {"anyOf": [{"type": "object"} | LINK, {"const": 1}]}}} | A, {"c": {"c": 1}}),
        (
            {"$ref": "#/$defs/0"}
            | {
                "$defs": {"400": NULL}
                | {
                    str(one): {
                        "type": "object",
                        "properties": {"c": {"$ref": f"#/$defs/{one + 1}"}},
                        "required": ["c"],
                    }
                    for one in range(400)
                }
            },
            None,
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_schema_that_needs_itself_only_in_some_values_is_followed(schema: Any, valid: Any) -> None:
    assert takes(schema, valid) == [valid is not None]


def test_telling_branches_apart_has_an_end() -> None:
    """Whatever a client sends costs a fraction of a second."""
    listed = {"enum": list(range(5000))}
    schema = {
        "$defs": {"a": listed},
        "items": [{"oneOf": [{"$ref": "#/$defs/a"}] * 200} for _ in range(50)],
    }
    with pytest.raises(GrammarError, match="too many branches and values"):
        structure.of_json_schema(schema)


def test_the_style_decides_white_space_and_more_properties() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    texts = ['{"a":[1,2]}', '{"a": [1, 2]}', '{\n "a" :\t[1]}', '{"a":[]' + " " * 65 + "}", '{"b":1}']
    styles = {
        JsonStyle(): [True, True, True, False, True],
        JsonStyle(any_whitespace=False): [True, False, False, False, True],
        JsonStyle(whitespace_pattern=" ?"): [True, True, False, False, True],
        JsonStyle(additional_properties=False): [True, True, True, False, False],
    }
    for style, expected in styles.items():
        matcher = compiled(structure.of_json_schema(schema, style))
        assert [accepts(matcher, text) for text in texts] == expected, style


KEYWORDS = (
    *("$defs", "$id", "$ref", "$schema", "additionalProperties", "allOf", "anyOf", "const", "dependencies"),
    *(
        "enum",
        "exclusiveMinimum",
        "format",
        "if",
        "items",
        "maxItems",
        "minLength",
        "minimum",
        "not",
        "oneOf",
    ),
    *("pattern", "prefixItems", "properties", "propertyNames", "required", "then", "type", "uniqueItems"),
)
WORDS = st.sampled_from(("string", "object", "number", "date", "#/$defs/type", "#", "a"))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | WORDS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(KEYWORDS), ANY_JSON, max_size=5) | ANY_JSON, st.booleans(), st.booleans()
)
def test_any_json_as_a_schema_is_a_grammar_or_refused(schema: Any, as_text: bool, closed: bool) -> None:
    style = JsonStyle(additional_properties=not closed)
    with contextlib.suppress(GrammarError):
        compiled(structure.of_json_schema(json.dumps(schema) if as_text else schema, style))


LISTED = {"const": [1] * 80_000}
NAMES = {"enum": [str(number) for number in range(5000)]}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$defs": {"a": {"const": [1] * 100_000}}}, "256 Ki"),
        (
            {"$defs": {"a": LISTED}, "items": [{"oneOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}] * 40},
            "too many",
        ),
        (
            {
                "$defs": {"a": NAMES},
                "items": [{"type": "object", "propertyNames": {"$ref": "#/$defs/a"}}] * 500,
            },
            "too many",
        ),
        (
            {
                "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 9000}},
                "oneOf": [{"$ref": "#/$defs/a"}] * 99,
            },
            "too many",
        ),
    ],
    ids=["long", "long values", "referred names", "a loop"],
)
def test_what_is_looked_at_is_counted_by_its_length(
    schema: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled: list[int] = []

    def spell(value: Any) -> str:
        spelled.append(len(text := json.dumps(value)))
        return text

    monkeypatch.setattr("slipway.text.json_schema._spelled", spell)
    with pytest.raises(GrammarError, match=reason):
        structure.of_json_schema(schema)
    assert sum(spelled) < 8 * structure.MAX_GRAMMAR


@pytest.mark.parametrize("number", [-(2**63), -(2**63) + 1, -(2**63) + 513, -(2.0**63)])
@pytest.mark.parametrize("where", ["const", "enum", "bounds", "nested"])
def test_numbers_at_which_the_library_ends_the_process_are_refused(number: float, where: str) -> None:
    schemas: dict[str, Any] = {
        "const": {"const": number},
        "enum": {"enum": ["a", number]},
        "bounds": {"type": "integer", "minimum": number, "maximum": number},
        "nested": {"properties": {"a": {"const": {"b": [number]}}}},
    }
    with pytest.raises(GrammarError, match=r"digit by digit|64 bits|no number is within its bounds"):
        compiled(structure.of_json_schema(schemas[where]))
