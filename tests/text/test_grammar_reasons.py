"""Reasons of llguidance: each is said in our words, with the place and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grammars import compiled
from slipway.text import structure
from slipway.text.errors import GrammarError

OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (
            {"not": {}, "contains": {}},
            "no grammar can hold the keywords contains, not; leave out what they say",
        ),
        (
            {"type": "strin"},
            "type is array, boolean, integer, null, number, object or string, and not strin",
        ),
        ({"minItems": -1}, "minItems is a whole number from 0 on, and not -1"),
        ({"required": [1]}, "each of required is a text, and not 1"),
        ({"properties": [1]}, "properties is an object"),
        ({"$ref": "#/$defs/a"}, "$ref leads to #/$defs/a, which the schema does not have"),
        (
            {"$ref": "http://x.y/z"},
            "$ref leads to http://x.y/z, and nothing is fetched; put that schema into $defs",
        ),
        ({"type": "string", "pattern": "("}, "the regular expression ( cannot be read: unclosed group"),
        (
            OBJECT | {"patternProperties": {"^a": True, "b$": True}},
            "a name may match two of patternProperties, ^a and b$; make them differ from the beginning, or "
            "join them",
        ),
        (
            {"allOf": [{"type": "string"}, {"type": "integer"}]},
            "no value is valid by the schema: parts of it that hold together have different types",
        ),
        (
            OBJECT | {"required": ["a"], "additionalProperties": False},
            "no value is valid by the schema: the required property a can have no value, or is not allowed",
        ),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": False}},
            "no value is valid by the schema: a part of it that has to hold is false (in #/$defs/a)",
        ),
        (
            {"type": "string", "format": "date", "pattern": "^a$"},
            "no value is valid by the schema: its pattern, format, lengths and values have no text in common",
        ),
        (
            {"type": "integer", "minimum": 2, "maximum": 1},
            "no value is valid by the schema: no number is within its bounds",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_refused_schema_is_explained_in_our_words(schema: Any, sentence: str) -> None:
    with pytest.raises(GrammarError) as raised:
        compiled(structure.of_json_schema(schema))
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda: structure.of_grammar("start: foo"), 'line 1, column 8: unknown name: "foo"'),
        (
            lambda: structure.of_grammar("start: /(/"),
            "the regular expression ( cannot be read: unclosed group",
        ),
        (lambda: structure.of_grammar("end: /a/"), "the grammar has no rule named start"),
        (
            lambda: structure.of_tool_calls({"f": {"properties": {"a": {"not": {}}}}}),
            "no grammar can hold the keyword not; leave out what it says",
        ),
        (
            lambda: structure.of_regex("(?=a)"),
            "the regular expression (?=a) cannot be read: look-around ((?=, (?!, (?<) is not supported; "
            "say it without",
        ),
    ],
    ids=["name", "expression", "start", "tools", "look-around"],
)
def test_a_refused_grammar_is_explained_with_its_place(write: Callable[[], str], sentence: str) -> None:
    with pytest.raises(GrammarError) as raised:
        compiled(write())
    assert str(raised.value) == sentence
