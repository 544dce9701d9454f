"""Bounds of numbers: what a grammar accepts is within them, at the edges of 64 bits and of floats too."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammars import accepts, compiled
from slipway.text import structure
from slipway.text.errors import GrammarError

FLOAT_MAX = 1.7976931348623157e308
FLOAT32_MAX = 3.4028234663852886e38


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
            ["0", "-9223372036854774784", "9223372036854775807"],
            ["9223372036854775808", "-9223372036854775809"],
        ),
        ({"type": "integer", "maximum": 2**64 - 1}, ["9223372036854775807"], ["18446744073709551616"]),
        ({"type": "integer", "minimum": 10**18}, ["1000000000000000000"], ["999999999999999999"]),
        ({"type": "integer", "maximum": -(10**18)}, ["-1000000000000000000"], ["-999999999999999999"]),
        ({"type": "integer", "exclusiveMinimum": 2**53}, ["9007199254740994"], ["9007199254740992"]),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 2.5}, ["1", "2"], ["0", "3"]),
        ({"type": "number", "minimum": -FLOAT_MAX, "maximum": FLOAT_MAX}, ["0.5"], ["1e400"]),
        ({"type": "number", "minimum": -FLOAT32_MAX, "maximum": FLOAT32_MAX}, ["123456789.5"], ["1e39"]),
        ({"type": "number", "minimum": 10**400 * -1, "maximum": 1}, ["-7.5", "1"], ["1.5"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.001", "5"], ["0", "0.0", f"0.{'0' * 400}1"]),
        ({"type": "number", "exclusiveMaximum": 1}, ["0.999", "0"], ["1", f"0.{'9' * 30}"]),
        ({"type": "number", "minimum": 5e-324, "maximum": 0.1}, ["0.1", "0.05"], ["0", "0.2"]),
        ({"type": "number", "minimum": 1e-300}, ["1"], ["0"]),
        ({"const": 2**53 + 2}, ["9007199254740994"], ["9007199254740992"]),
        ({"type": "number", "minimum": 0.1, "maximum": 0.1}, ["0.1"], ["0.11", "0.09"]),
        ({"type": "number", "minimum": 0.3, "maximum": 0.7}, ["0.3", "0.7"], ["0.29", "0.71"]),
        ({"enum": [0.1, 0.2], "minimum": 0.1}, ["0.1", "0.2"], ["0.3"]),
        ({"enum": [0.3, 0.4, "a"], "maximum": 0.3}, ["0.3", '"a"'], ["0.4"]),
        ({"enum": [0.3, 0.35], "multipleOf": 0.1}, ["0.3"], ["0.35"]),
        ({"const": 19.99, "multipleOf": 0.01}, ["19.99"], ["20"]),
        ({"enum": [1, 2, 3], "exclusiveMinimum": 1, "exclusiveMaximum": 3}, ["2"], ["1", "3"]),
    ],
    ids=str,
)
def test_wide_and_tiny_bounds_are_held(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    matcher = compiled(structure.of_json_schema(schema))
    assert [text for text in good if not accepts(matcher, text)] == []
    assert [text for text in bad if accepts(matcher, text)] == []


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"const": -(2**63)}, "const has the number -9223372036854775808.*as a string"),
        ({"enum": [1, [2**53 + 1]]}, "enum has the number 9007199254740993"),
        ({"const": 1e300, "type": "integer"}, "const has the number 1e\\+300"),
        ({"const": 12345678901234567890}, "const has the number 12345678901234567890"),
        ({"type": "integer", "minimum": 2**64}, "no number can be held to minimum 1.84467e\\+19.*64 bits"),
        ({"type": "number", "minimum": FLOAT32_MAX}, "no number can be held to minimum 3.40282e\\+38"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "no 64-bit float is between"),
        ({"const": 5, "maximum": 3}, "no value is valid"),
        ({"enum": [5, 6], "multipleOf": 4}, "no value is valid"),
        (
            {"type": "number", "minimum": 0.30000000000000004, "maximum": 0.30000000000000004},
            "at most 15 digits",
        ),
        ({"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.1}, "no number is within its bounds"),
        ({"multipleOf": 0}, "multipleOf is a number above 0"),
        ({"multipleOf": 5e9}, "multipleOf 5000000000.0 has too many digits"),
        ({"multipleOf": 86400}, "multipleOf 86400 has too many digits.*at most 10,000"),
        ({"multipleOf": 0.07}, "multipleOf 0.07 has too many digits"),
        ({"allOf": [{"multipleOf": 9_999}, {"multipleOf": 9_998}]}, "no small common multiple"),
        ({"minimum": "1"}, "minimum is a number, and not 1"),
        ({"maximum": float("inf")}, "maximum is a number, and not inf"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_held_are_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiled(structure.of_json_schema(schema))


def test_bounds_of_no_number_leave_out_an_optional_property() -> None:
    for bounds in ({"minimum": 2, "maximum": 1}, {"minimum": 1, "maximum": 3, "multipleOf": 5}):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer"} | bounds},
            "additionalProperties": False,
        }
        matcher = compiled(structure.of_json_schema(schema))
        assert accepts(matcher, "{}")
        assert not accepts(matcher, '{"a": 1}')


EDGES = [0, 1, 0.5, 0.1, 1 / 3, 98.99999999999999, 99, 1e-7, 1e-61, 5e-324, 2**31, 2**53 + 1, 10**18]
EDGES += [2**63 - 1, 2**63, 2**64 - 1, 9e18, 1e19, FLOAT32_MAX, FLOAT_MAX]
NUMBERS = st.sampled_from(EDGES).flatmap(lambda edge: st.sampled_from([edge, -edge])) | st.floats(-1e19, 1e19)
BOUNDS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional=dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
)


@settings(max_examples=300, deadline=None)
@given(BOUNDS, st.lists(NUMBERS, min_size=10, max_size=10), st.sampled_from([-1, 0, 1]))
def test_what_is_accepted_is_within_random_bounds(schema: Any, numbers: list[Any], beside: int) -> None:
    try:
        matcher = compiled(structure.of_json_schema(schema))
    except GrammarError:
        return
    for number in [*numbers, *(schema[keyword] for keyword in schema.keys() - {"type"})]:
        for value in (number, int(number) + beside):
            text = format(Decimal(repr(value)), "f")
            if accepts(matcher, text):
                jsonschema.validate(json.loads(text), schema)
