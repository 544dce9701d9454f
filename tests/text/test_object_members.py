"""Objects: no others than the listed members, each name once, and counts by names."""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import Any

import jsonschema
import pytest
from e2e.ground.patience import scaled
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from grammars import accepts, compiled
from slipway.text import structure
from slipway.text.errors import GrammarError
from slipway.text.object_names import all_but, names_of, rust_pattern
from slipway.text.structure import JsonStyle

OPEN, CLOSED = JsonStyle(any_whitespace=False), JsonStyle(any_whitespace=False, additional_properties=False)
OBJECT = {"type": "object"}
NONE_ELSE = {"type": "object", "additionalProperties": False}
TRUTH = {"type": "boolean"}
A_STRING = OBJECT | {"properties": {"a": {"type": "string"}}}


def check(schema: Any, good: list[str], bad: list[str], style: JsonStyle = OPEN) -> None:
    matcher = compiled(structure.of_json_schema(schema, style))
    assert [text for text in good if not accepts(matcher, text)] == []
    assert [text for text in bad if accepts(matcher, text)] == []


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (OBJECT | {"properties": {"a": True}}, ['{"a":1}', "{}"], ['{"b":1}', '{"a":1,"b":1}']),
        (OBJECT | {"properties": {}}, ["{}"], ['{"b":1}']),
        (OBJECT, ['{"b":1}'], ["1"]),
        (OBJECT | {"required": ["a"]}, ['{"a":1,"b":1}'], ["{}"]),
        (OBJECT | {"properties": {"a": True}, "required": ["b"]}, ['{"a":1,"b":1}'], ['{"b":1,"c":1}']),
        (OBJECT | {"properties": {"a": True}, "additionalProperties": True}, ['{"a":1,"b":1}'], []),
        (
            {"allOf": [OBJECT | {"properties": {"a": True}, "required": ["a"]}, {"properties": {"b": True}}]},
            ['{"a":1,"b":1}', '{"a":1}'],
            ['{"b":1}', '{"a":1,"c":1}'],
        ),
        (
            {
                "$defs": {"A": OBJECT | {"properties": {"a": True}}},
                "$ref": "#/$defs/A",
                "properties": {"b": True},
            },
            ['{"b":1,"a":1}'],
            ['{"c":1}'],
        ),
        (
            OBJECT
            | {
                "properties": {"kind": {"enum": ["x", "y"]}},
                "required": ["kind"],
                "oneOf": [
                    OBJECT | {"properties": {"kind": {"const": "x"}, "p": TRUTH}, "required": ["p"]},
                    OBJECT | {"properties": {"kind": {"const": "y"}}},
                ],
            },
            ['{"kind":"x","p":true}', '{"kind":"y"}'],
            ['{"kind":"x"}', '{"kind":"y","p":true}', '{"kind":"y","q":1}'],
        ),
        (
            OBJECT
            | {"properties": {"a": TRUTH, "b": TRUTH}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            ['{"a":true}', '{"b":true}', '{"a":true,"b":true}'],
            ["{}", '{"a":true,"c":1}'],
        ),
    ],
    ids=str,
)
def test_closed_objects_have_the_members_that_are_listed_for_them(
    schema: Any, good: list[str], bad: list[str]
) -> None:
    check(schema, good, bad, CLOSED)


def test_a_listed_name_is_not_written_again_in_another_spelling() -> None:
    listed = OBJECT | {"properties": {"a": {"type": "integer"}, 'f"b': TRUTH}, "required": ["a"]}
    escaped = ['{"a":1,"\\u0061":"x"}', '{"a":1,"f\\"b":true,"f\\u0022b":1}', '{"a":1,"a":1}']
    check(listed, ['{"a":1,"ab":"x","":2}', '{"a":1,"f\\"b":true,"f\\"c":1}'], escaped)
    check(listed | {"additionalProperties": TRUTH}, ['{"a":1,"b":true}'], [*escaped, '{"a":1,"b":1}'])
    patterns = OBJECT | {"patternProperties": {"^x-": {"type": "integer"}}}
    check(patterns, ['{"x-1":1,"y":"a"}'], ['{"x-1":"a"}', '{"\\u0078-1":"a"}'])
    both = {"allOf": [listed, OBJECT | {"properties": {"b": TRUTH}}]}
    check(both, ['{"a":1,"b":true,"c":1}'], ['{"a":1,"\\u0062":1}', '{"a":1,"\\u0061":"x"}'])


NAMED_ID = OBJECT | {"properties": {"a": {"type": "string"}, "$id": {"type": "integer"}}}
B_OPEN = OBJECT | {"properties": {"b": True}, "additionalProperties": True}
ANY_SHORT = {"patternProperties": {"^[\\s\\S]{0,3}$": {"type": ["integer", "string"]}}}


@pytest.mark.parametrize("style", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize(
    "schema",
    [
        A_STRING | {"allOf": [B_OPEN]},
        A_STRING | {"anyOf": [B_OPEN, OBJECT | {"properties": {"c": True}}]},
        NAMED_ID | {"additionalProperties": {"type": "integer"}},
    ],
    ids=["allOf", "anyOf", "a property named $id"],
)
def test_a_part_that_is_open_does_not_let_a_listed_name_in_again(schema: Any, style: JsonStyle) -> None:
    check(schema, ['{"a":"s"}', '{"a":"s","x":1}'], ['{"a":"s","\\u0061":1}', '{"\\u0061":1}'], style)


@pytest.mark.parametrize("name", ["\x7f", "\n", "a\x7f"])
def test_a_pattern_that_may_match_a_listed_control_character_is_refused(name: str) -> None:
    listed = OBJECT | {"properties": {name: {"type": "string"}}}
    for schema in (NONE_ELSE | listed | ANY_SHORT, {"allOf": [listed, NONE_ELSE | ANY_SHORT]}):
        with pytest.raises(GrammarError, match="has control characters, and patternProperties may match it"):
            structure.of_json_schema(schema)
    structure.of_json_schema(listed | {"patternProperties": {"^x-": True}})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            NONE_ELSE | {"patternProperties": {"^zz$": TRUTH}},
            ['{"zz":true}', "{}"],
            ['{"zz":true,"zz":true}'],
        ),
        (
            NONE_ELSE
            | {
                "properties": {"ab": {"enum": ["x"]}},
                "required": ["ab"],
                "patternProperties": {"^zz$": {"type": "string"}},
            },
            ['{"ab":"x"}', '{"ab":"x","zz":"a"}'],
            ['{"ab":"x","zz":"a","zz":"b"}', '{"zz":"a"}', '{"ab":"x","zz":1}'],
        ),
        (
            NONE_ELSE | {"properties": {"x": True}, "patternProperties": {"^x$": TRUTH}},
            ['{"x":true}'],
            ['{"x":1}', '{"x":true,"x":true}'],
        ),
        (
            NONE_ELSE | {"patternProperties": {"^[ab]$": True}, "minProperties": 2},
            ['{"a":1,"b":1}'],
            ['{"a":1}', '{"a":1,"a":1}'],
        ),
        (
            NONE_ELSE | {"properties": dict.fromkeys("abc", True), "minProperties": 1, "maxProperties": 2},
            ['{"a":1}', '{"b":1,"c":1}'],
            ["{}", '{"a":1,"b":1,"c":1}'],
        ),
        (
            OBJECT | {"additionalProperties": TRUTH, "minProperties": 1, "maxProperties": 2},
            ['{"a":true}', '{"a":true,"b":true}'],
            ["{}", '{"a":true,"b":true,"c":true}'],
        ),
        (
            OBJECT | {"properties": {"a": True}, "required": ["a"], "minProperties": 2},
            ['{"a":1,"b":1}'],
            ['{"a":1}', '{"a":1,"a":1}', '{"a":1,"\\u0061":1}'],
        ),
        (
            A_STRING | {"additionalProperties": TRUTH, "minProperties": 1},
            ['{"a":"s"}', '{"b":true}', '{"a":"s","b":true}'],
            ["{}", '{"b":1}', '{"a":true}', '{"\\u0061":true}'],
        ),
        (
            OBJECT
            | {"properties": dict.fromkeys("ra", True), "required": ["r"]}
            | {"additionalProperties": TRUTH, "minProperties": 2},
            ['{"r":1,"a":1}', '{"r":1,"b":true}', '{"r":1,"a":1,"b":true}'],
            ['{"r":1}', '{"r":1,"r":1}', '{"a":1,"b":true}'],
        ),
        (
            A_STRING | {"patternProperties": {"^x-": TRUTH}, "minProperties": 1},
            ['{"a":"s"}', '{"x-1":true}'],
            ["{}", '{"x-1":1}'],
        ),
    ],
    ids=str,
)
def test_counts_are_of_names(schema: Any, good: list[str], bad: list[str]) -> None:
    check(schema, good, bad)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (OBJECT | {"additionalProperties": TRUTH, "minProperties": 3}, "minProperties is 3.*written twice"),
        (OBJECT | {"propertyNames": {"maxLength": 1}, "minProperties": 3}, "minProperties is 3"),
        (
            OBJECT
            | {"additionalProperties": TRUTH, "propertyNames": {"maxLength": 1}}
            | {"minProperties": 3, "maxProperties": 3},
            "minProperties is 3.*written twice",
        ),
        (
            NONE_ELSE | {"patternProperties": {"^x$": TRUTH}, "minProperties": 2, "maxProperties": 2},
            "minProperties is 2, and the schema has 1 properties",
        ),
        (NONE_ELSE | {"required": ["a", "b"], "maxProperties": 1}, "requires 2 properties"),
        (
            NONE_ELSE | {"properties": dict.fromkeys("abcdefghijkl", True), "minProperties": 6},
            "more than 64 choices among 12",
        ),
        (
            OBJECT
            | {"properties": {str(one): True for one in range(65)}}
            | {"additionalProperties": TRUTH, "minProperties": 1},
            "more than 64 choices among 65",
        ),
        (
            {
                "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"a": True}}]}},
                "$ref": "#/$defs/A",
            },
            "requires itself again",
        ),
    ],
    ids=str,
)
def test_counts_that_cannot_be_told_are_refused(schema: Any, reason: str) -> None:
    for style in (OPEN, CLOSED):
        with pytest.raises(GrammarError, match=reason):
            compiled(structure.of_json_schema(schema, style))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^x$", ["x"]),
        ("^(?:a|b)?c{1,2}$", ["ac", "acc", "bc", "bcc", "c", "cc"]),
        ("^[a-c-]$|^\\.$", ["-", ".", "a", "b", "c"]),
        *(
            (many, None)
            for many in ("x", "^x", "^x+$", "^a|b$", "^.$", "^[^a]$", "^(?i)a$", "^\\w{3}$", "^(a$", "^[")
        ),
    ],
)
def test_a_pattern_of_few_names_is_those_names(pattern: str, names: list[str] | None) -> None:
    assert names_of(pattern) == names


@pytest.mark.parametrize(
    "pattern",
    [
        "^" + "(" * 330 + "a" + ")" * 330 + "$",
        "^(a|b){8}" + "y{256}" * 1400 + "$",
        "^" + "x{256}" * 1400 + "$",
        "|".join(f"^a{one % 200}$" for one in range(20_000)),
    ],
    ids=["deep", "long", "one name", "wide"],
)
def test_reading_a_pattern_has_an_end(pattern: str) -> None:
    spent: list[int] = []
    assert names_of(pattern, spent.append) is None
    assert sum(spent) < 400_000


def test_reading_many_patterns_has_an_end() -> None:
    patterns = {f"^[a-d]{{4}}(ab|cd|ef){{3}}{one}$": True for one in range(2000)}
    with pytest.raises(GrammarError, match="too many branches and values"):
        structure.of_json_schema(OBJECT | {"patternProperties": patterns})


@pytest.mark.parametrize(
    ("schema", "most", "too_many"),
    [
        (lambda n: {"patternProperties": {f"^k{one}x-": True for one in range(n)}}, 100, 200),
        (lambda n: {"required": [str(one) for one in range(n)]}, 1000, 3000),
        (lambda n: {"properties": {str(one): True for one in range(n)}}, 1000, 3000),
        (lambda n: {"propertyNames": {"enum": [str(one) for one in range(n)]}}, 1000, 3000),
    ],
    ids=["patternProperties", "required", "properties", "propertyNames"],
)
def test_more_names_than_compile_in_a_second_are_refused(schema: Any, most: int, too_many: int) -> None:
    compiled(structure.of_json_schema(OBJECT | schema(most), CLOSED))
    with pytest.raises(GrammarError, match="too many names or patterns of names to compare"):
        structure.of_json_schema(OBJECT | schema(too_many), CLOSED)


@pytest.mark.parametrize(
    "schema",
    [
        OBJECT | {"properties": {f"p{one}": {"$ref": "#"} for one in range(5000)}},
        {"type": "string", "pattern": "[\\p{" * 30_000},
    ],
    ids=["references", "classes"],
)
def test_preparing_takes_a_fraction_of_a_second(schema: Any) -> None:
    begun = time.thread_time()
    with contextlib.suppress(GrammarError):
        structure.of_json_schema(schema, CLOSED)
    assert time.thread_time() - begun < scaled(1)


def test_a_negated_class_excludes_the_quote_and_the_backslash_that_it_names() -> None:
    string = {"type": "string", "pattern": '^[^"\\\\]*$'}
    check(string, ['"a b"'], ['"\\""', '"\\\\"', '"a\\"b"'])
    assert rust_pattern(r"\[^a[^\]b][^-c][a[^d]]") == r"\[^a[^\x00-\x1f\]b][^\x00-\x1f\-c][a\[^d]]"


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[a-z&&[^b]]$", ["b]", "&]", "^]", "[]"], ["a", "b", "c"]),
        ("^[a-c--b]$", ["a", "-", "b"], []),
        ("^[+--]$", ["+", ",", "-"], ["."]),
        ("^[a-c~~b]$", ["a", "b", "~"], ["d"]),
        ("^[^a&&b]$", ["c"], ["a", "&", "b"]),
        (r"^[\w-.]+$", ["a-b.c"], ["a+b"]),
        (r"^[\u0041-C\]]$", ["A", "B", "]"], ["D"]),
        ("^[[:alpha:]]$", ["a]", ":]", "[]"], ["a", "b"]),
    ],
)
def test_the_operators_of_rusts_classes_are_characters(pattern: str, good: list[str], bad: list[str]) -> None:
    check({"type": "string", "pattern": pattern}, list(map(json.dumps, good)), list(map(json.dumps, bad)))


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^.$", 'a\t"\\\u0085\ufeff', "\n\r\u2028\u2029"),
        (r"^\.$", ".", "a"),
        (r"^\s$", "\t\n\v\f\r \u00a0\u2003\u2028\ufeff", 'a"\\\u0085'),
        (r"^\S$", 'a"\\\u0085', "\t\n \u00a0\ufeff"),
        (r"^[a\s]$", "a\n \ufeff", 'b"\\\u0085'),
        (r"^[^\s]$", 'a"\u0085', "\n \ufeff"),
        (r"^[\s\S]$", 'a\n\r"\\ \u0085\u2028\ufeff', ""),
    ],
)
def test_dots_and_white_space_are_those_of_ecma_262(pattern: str, good: str, bad: str) -> None:
    matcher = compiled(structure.of_json_schema({"type": "string", "pattern": pattern}))
    assert [char for char in good if not accepts(matcher, json.dumps(char, ensure_ascii=False))] == []
    assert [char for char in bad if accepts(matcher, json.dumps(char, ensure_ascii=False))] == []


@pytest.mark.parametrize("pattern", ["^[]a]$", "^[^]$", "a[]"])
def test_an_empty_class_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="empty class"):
        structure.of_json_schema({"type": "string", "pattern": pattern})


@given(st.lists(st.text('ab"\\', max_size=3), max_size=4), st.lists(st.text('ab"\\', max_size=4), max_size=9))
def test_all_other_names_are_those_that_are_not_listed(listed: list[str], names: list[str]) -> None:
    matcher = compiled(structure.of_json_schema({"type": "string", "pattern": all_but(listed)}))
    for name in [*names, *listed]:
        assert accepts(matcher, json.dumps(name)) == (name not in listed)


NAMES = ["a", "b", "ab", "x", "x-1"]
LEAVES: list[Any] = [TRUTH, {"type": "null"}, {"enum": ["x"]}, {"const": 1}, True, False]
LEAVES += [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string", "pattern": '^[^"]$'}]
PATTERNS = ["^x$", "^[ab]$", "^x", "^a", "b$", "^x-[0-9]+$", "."]


def objects(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema at random."""
    schema: dict[str, Any] = {"type": "object"} if chance.random() < 0.8 else {}
    inner = [*LEAVES, objects(chance, depth + 1)] if depth < 2 else LEAVES
    if chance.random() < 0.7:
        schema["properties"] = {
            name: chance.choice(inner) for name in chance.sample(NAMES, chance.randint(0, 3))
        }
    if chance.random() < 0.3:
        schema["patternProperties"] = {chance.choice(PATTERNS): chance.choice(LEAVES) for _ in range(2)}
    if chance.random() < 0.5:
        schema["additionalProperties"] = chance.choice([False, *inner])
    if chance.random() < 0.4:
        schema["required"] = chance.sample(NAMES, chance.randint(0, 2))
    for keyword, often in (("minProperties", 0.3), ("maxProperties", 0.2)):
        if chance.random() < often:
            schema[keyword] = chance.randint(0, 3)
    if depth < 2 and chance.random() < 0.2:
        schema["allOf"] = [objects(chance, 2) for _ in range(2)]
    if depth < 2 and chance.random() < 0.15:
        schema["anyOf"] = [chance.choice([objects(chance, 2), {"required": ["a"]}]) for _ in range(2)]
    if depth < 2 and chance.random() < 0.1:
        schema["$ref"] = "#/$defs/A"
    return schema


def instances(chance: random.Random, depth: int = 0) -> Any:
    if depth > 1 or (depth and chance.random() < 0.5):
        return chance.choice([True, None, "x", 1, 10, '"'])
    return {name: instances(chance, depth + 1) for name in chance.sample([*NAMES, "q"], chance.randint(0, 4))}


def test_what_random_schemas_accept_is_valid_and_never_ends_in_the_middle() -> None:
    chance = random.Random(11)
    compiles = 0
    for _ in range(250):
        schema = objects(chance) | {"$defs": {"A": objects(chance, 2)}}
        try:
            matcher = compiled(structure.of_json_schema(schema, chance.choice([OPEN, CLOSED])))
        except GrammarError:
            continue
        compiles += 1
        texts = [json.dumps(instances(chance), separators=(",", ":")) for _ in range(8)]
        texts = [text for text in texts if accepts(matcher, text)]
        texts += filter(None, (walked(matcher, chance) for _ in range(3)))
        for text in texts:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert compiles > 80


def walked(matcher: LLMatcher, chance: random.Random, most: int = 200) -> str | None:
    """A text drawn byte by byte; None where it has not ended after so many. Some byte may always come."""
    matcher = matcher.deep_copy()
    found = bytearray()
    for _ in range(most):
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if matcher.is_accepting() and (not allowed or chance.random() < 0.5):
            return found.decode()
        assert allowed, found
        closing = [byte for byte in allowed if byte in b'"}],']
        byte = chance.choice(closing if closing and chance.random() < 0.5 else allowed)
        assert matcher.consume_token(byte)
        found.append(byte)
    return None
