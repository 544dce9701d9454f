"""Regular expressions, choices, grammars and structural tags: what each form accepts and refuses."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import pytest

from grammars import accepts, compiled
from slipway.text import structure
from slipway.text.errors import GrammarError
from slipway.text.structural_tag import of_structural_tag

SQL = """
root ::= "SELECT " column " from " table where?   # a comment
column ::= "col_" [1-2]
table ::= "t_" [a-z]{2,3}
where ::= " where " column "=" ("1" | "2")
"""
SUM = """
?start: sum
?sum: NUMBER | sum "+" NUMBER
%import common.NUMBER
%ignore " "
"""
INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ONE_CALL: dict[str, Any] = {
    "type": "triggered_tags",
    "triggers": ["<fn="],
    "tags": [{"begin": "<fn=x>", "content": {"type": "json_schema", "json_schema": INTEGER}, "end": "</fn>"}],
}

DEEP = reduce(lambda inner, _: [inner], range(20_000), [])
"""JSON of so many levels."""


def check(grammar: str, good: list[str], bad: list[str]) -> None:
    matcher = compiled(grammar)
    assert [text for text in good if not accepts(matcher, text)] == []
    assert [text for text in bad if accepts(matcher, text)] == []


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\d{3}-[a-f]+", ["123-abc"], ["12-a", "123-abcg", "123-"]),
        ("^[0-9]+$", ["1"], ["", "x"]),
        ("a/b|\\/", ["a/b", "/"], ["a"]),
        ('"\\n', ['"\n'], ["\n"]),
        ("(?i)yes", ["YeS"], ["no"]),
        (".*", ["", "ü 😀"], ["a\nb"]),
    ],
)
def test_a_regular_expression_is_of_the_whole_text(pattern: str, good: list[str], bad: list[str]) -> None:
    check(structure.of_regex(pattern), good, bad)


@pytest.mark.parametrize(
    "choices",
    [
        ["yes", "no", "yes, but"],
        ['"', "\\", "a/b", "(a|b)*", "^$", "[x]"],
        ["\n", "\t\x00\x7f", "é", "😀", "日本"],
    ],
)
def test_a_choice_is_one_of_the_texts_letter_by_letter(choices: list[str]) -> None:
    check(structure.of_choice(choices), choices, ["", "maybe", choices[0] * 2, "a", "x"])
    with pytest.raises(GrammarError, match="at least one"):
        structure.of_choice([])


def test_thousands_of_choices_are_one_lexeme() -> None:
    check(structure.of_choice([f"option {i}" for i in range(8000)]), ["option 7999"], ["option 8000"])


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (
            SQL,
            ["SELECT col_1 from t_ab where col_2=1", "SELECT col_1 from t_abc"],
            ["SELECT col_3 from t_ab"],
        ),
        (SUM, ["1+2", "1 + 2 + 3"], ["1+", "a"]),
        ('start: "a" %json {"type": "integer"}', ["a12"], ["a", '"12"']),
    ],
)
def test_a_grammar_is_lark_or_ebnf(grammar: str, good: list[str], bad: list[str]) -> None:
    check(structure.of_grammar(grammar), good, bad)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda: structure.of_regex("("), "unclosed group"),
        (lambda: structure.of_regex("(?=a)"), "look-around"),
        (lambda: structure.of_grammar("root ::= foo"), "Rule 'foo' not found"),
        (lambda: structure.of_grammar("root ::= " + "(" * 5000), "cannot be read"),
        (lambda: structure.of_grammar("start: foo"), "unknown name"),
        (lambda: structure.of_grammar("root ::= " + '"a"' * 100_000), "256 Ki"),
        (lambda: of_structural_tag({}), "a format, or structures and triggers"),
        (lambda: of_structural_tag("{"), "not valid JSON"),
        (lambda: of_structural_tag({"format": {"type": "poem"}}), 'any_text, .*and not "poem"'),
        (lambda: of_structural_tag({"format": {"type": ["tag"]}}), r'any_text, .*and not \["tag"\]'),
        (lambda: of_structural_tag({"format": {"type": DEEP}}), "nests too deeply"),
        (lambda: of_structural_tag({"format": {**ONE_CALL, "triggers": ["<tool"]}}), "no tag begins with"),
        (lambda: of_structural_tag({"format": {**ONE_CALL, "tags": [3]}}), "begin of a format should be"),
        (lambda: of_structural_tag({"format": {**ONE_CALL, "triggers": [["<fn="]]}}), "each of triggers"),
        (lambda: of_structural_tag({"format": {**ONE_CALL, "triggers": [""]}}), "each of triggers"),
        (lambda: of_structural_tag({"format": {**ONE_CALL, "triggers": ["<fn", "<fn"]}}), "begins the other"),
        (lambda: of_structural_tag({"format": {**ONE_CALL, "triggers": ["<fn=", "<"]}}), "begins the other"),
        (lambda: of_structural_tag({"structures": [{}], "triggers": ["x"]}), "begin, schema and end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_refused_with_the_reason(write: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiled(write())


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"properties": {"a": {"type": "integer"}}}, ['{"a": 1}', "{}"], ['{"a": "x"}']),
        ({"type": ["object", "null"], "additionalProperties": {}}, ['{"a": 1}', "{}"], []),
        (structure.ANY_ARGUMENTS, ['{"a": 1}', "{}"], []),
        ({}, ["{}"], ['{"a": 1}']),
        ({"type": "object", "description": "The time."}, ["{}"], ['{"a": 1}']),
        ({"type": "object", "properties": {}, "required": []}, ["{}"], ['{"a": 1}']),
    ],
    ids=str,
)
def test_a_calls_arguments_are_an_object_with_the_declared_parameters(
    schema: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    bad = [*bad, "5", "null", '"{}"', "[]", "true"]
    check(structure.of_arguments(schema), good, bad)
    calls = structure.of_tool_calls({"now": schema})
    check(calls, *([f'[{{"name": "now", "parameters": {one}}}]' for one in texts] for texts in (good, bad)))
    for write in (structure.of_arguments, lambda schema: structure.of_tool_calls({"now": schema})):
        with pytest.raises(GrammarError, match='type "object", and not "string"'):
            write({"type": "string"})


def test_free_text_is_held_to_a_tag_after_its_trigger_alone() -> None:
    good = ["", "no call", 'hi <fn=x>{"a": 1}</fn> and <fn=x>{"a": 2}</fn>', "a < b, <fn"]
    bad = ['<fn=x>{"a": "s"}</fn>', "<fn=y>", '<fn=x>{"a": 1}']
    check(of_structural_tag({"format": ONE_CALL}), good, bad)
    old = {"structures": [{"begin": "<fn=x>", "schema": INTEGER, "end": "</fn>"}], "triggers": ["<fn="]}
    check(of_structural_tag(json.dumps(old)), good, bad)


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (
            {**ONE_CALL, "at_least_one": True, "stop_after_first": True},
            ['so <fn=x>{"a":1}</fn>'],
            ["", "so", '<fn=x>{"a":1}</fn> more'],
        ),
        (
            {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
            ["<t>\n x < y</t>", "<t></t>"],
            ["<t>x", "<t>a</t>b"],
        ),
        (
            {
                "type": "sequence",
                "elements": [
                    {"type": "const_string", "value": "A:"},
                    {"type": "regex", "pattern": "[0-9]+"},
                    {
                        "type": "or",
                        "elements": [
                            {"type": "const_string", "value": "!"},
                            {"type": "grammar", "grammar": 'root ::= "x"+'},
                        ],
                    },
                ],
            },
            ["A:12!", "A:1xxx"],
            ["A:!", "A:1", "A:1!x"],
        ),
        (
            {"type": "tags_with_separator", "separator": ",", "tags": ONE_CALL["tags"]},
            ["", '<fn=x>{"a":1}</fn>', '<fn=x>{"a":1}</fn>,<fn=x>{"a":2}</fn>'],
            ['<fn=x>{"a":1}</fn>,', "text"],
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_formats_nest(wanted: dict[str, Any], good: list[str], bad: list[str]) -> None:
    check(of_structural_tag({"format": wanted}), good, bad)


def nested(content: Any, levels: int, triggers: list[str], begins: list[str]) -> Any:
    for _ in range(levels):
        tags = [{"begin": begin, "content": content, "end": ">"} for begin in begins]
        content = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
    return content


def test_a_structural_tag_is_refused_before_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it shares in memory: what is written ends at the bound, and not where all of it is done."""
    written: list[str] = []

    def terminal(pattern: str) -> str:
        written.append(pattern)
        return "/x/"

    monkeypatch.setattr("slipway.text.structural_tag.regex_terminal", terminal)
    content = {"type": "regex", "pattern": "x"}
    for triggers in (["<", "<"], ["<", "<a"]):
        with pytest.raises(GrammarError, match="one begins the other"):
            of_structural_tag({"format": nested(content, 30, triggers, ["<a", "<b"])})
    with pytest.raises(GrammarError, match="256 Ki"):
        of_structural_tag({"format": nested(content, 30, ["<"], ["<a", "<b"])})
    assert len(written) < structure.MAX_GRAMMAR
