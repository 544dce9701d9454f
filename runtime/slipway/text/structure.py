"""What an output can be held to, each form as the text of one llguidance grammar.

Making the text is quick and knows no vocabulary; `matcher.py` compiles it. All functions raise GrammarError.
Source of the forms: vLLM's structured outputs; of the grammar: llguidance's documentation of its syntax.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.text.errors import GrammarError
from slipway.text.grammar_reasons import translated
from slipway.text.json_schema import prepared

MAX_GRAMMAR = 256 << 10
"""Characters of a grammar: what compiles within a second or two."""
TOO_LONG = f"the grammar is longer than {MAX_GRAMMAR >> 10} Ki characters"

ANY = r"/(?s:.*)/"
"""Any text, in Lark; no special token is of it."""

MAX_WHITESPACE = 64
"""Characters between two tokens of JSON: small models would write nothing else for ever."""

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""A tool whose arguments may be any object."""
_DECLARE_NOTHING = frozenset(
    (
        *("$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description"),
        *("example", "examples", "readOnly", "strict", "title", "type", "writeOnly"),
    )
)
"""Keywords of a tool's schema that say nothing of its parameters."""


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """How JSON is written, where its schema leaves that open."""

    any_whitespace: bool = True
    """Between tokens, up to MAX_WHITESPACE; False allows none."""
    whitespace_pattern: str | None = None
    """A regular expression for it instead."""
    additional_properties: bool = True
    """Objects whose schema does not say may have others than it lists."""

    @property
    def options(self) -> dict[str, object]:
        """As llguidance takes them, beside a schema."""
        if self.whitespace_pattern is None and not self.any_whitespace:
            return {"whitespace_flexible": False}
        pattern = self.whitespace_pattern or f"[ \\t\\r\\n]{{1,{MAX_WHITESPACE}}}"
        return {"whitespace_pattern": pattern}


JSON = JsonStyle()


def of_json_object(style: JsonStyle = JSON) -> str:
    """Any JSON object."""
    return of_json_schema({"type": "object"}, style)


def of_json_schema(schema: Any, style: JsonStyle = JSON) -> str:
    """A value that is valid by a schema, or by the JSON text of one."""
    return _grammar({"json_schema": styled(schema, style)})


def of_regex(pattern: str) -> str:
    """A text that all of a regular expression matches: in Rust's syntax, without look-around."""
    return _grammar({"lark_grammar": f"start: {regex_terminal(pattern)}"})


def of_choice(choices: Sequence[str]) -> str:
    """One of these texts."""
    if not choices:
        raise GrammarError("a choice needs at least one text to choose")
    return of_regex("|".join(f"({_escaped(choice)})" for choice in choices))


def of_grammar(text: str) -> str:
    """A text of a context-free grammar, in Lark or in EBNF as GBNF and xgrammar write it."""
    return _grammar({"lark_grammar": lark(text)})


def of_tool_calls(tools: Mapping[str, Any], style: JsonStyle = JSON, *, parallel: bool = True) -> str:
    """A list of calls, `[{"name": …, "parameters": …}, …]`, of at least one of these tools.

    tools     the schema of each one's arguments, by its name; it may leave out that they are an object
    parallel  there may be several
    """
    calls = []
    for name, schema in tools.items():
        begin = json.dumps(f'{{"name": {json.dumps(name)}, "parameters": ')
        calls.append(f'{begin} %json {json.dumps(styled(arguments_of(schema), style))} "}}"')
    more = '(", " call)*' if parallel else ""
    return _grammar({"lark_grammar": f'start: "[" call {more} "]"\ncall: {" | ".join(calls)}'})


def of_arguments(schema: Mapping[str, Any], style: JsonStyle = JSON) -> str:
    """The arguments of a call, by the schema of its tool."""
    return of_json_schema(arguments_of(schema), style)


def arguments_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's schema so that all that is valid by it are arguments: an object, whether it says so or not.

    A schema that declares no parameters takes none: OpenAI defines a list left out as an empty one.
    """
    named = schema.get("type", "object")
    if named != "object" and not (isinstance(named, list) and "object" in named):
        raise GrammarError(f'parameters of a tool have the type "object", and not {json.dumps(named)[:80]}')
    arguments = dict(schema) | {"type": "object"}
    if not any(schema.get(keyword) for keyword in schema.keys() - _DECLARE_NOTHING):
        arguments["additionalProperties"] = schema.get("additionalProperties", False)
    return arguments


def styled(schema: Any, style: JsonStyle) -> dict[str, Any]:
    """A schema as llguidance compiles it, with the style."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the schema is not valid JSON: {error}") from None
    try:
        long = len(json.dumps(schema)) > MAX_GRAMMAR
    except RecursionError:
        raise GrammarError("the schema's JSON nests too deeply") from None
    if long:
        raise GrammarError(TOO_LONG)
    ready = prepared(schema, additional_properties=style.additional_properties)
    if not isinstance(ready, dict):  # true and false
        ready = {"allOf": [ready]}
    return ready | {"x-guidance": style.options}


def regex_terminal(pattern: str) -> str:
    """A regular expression as Lark writes it."""
    from llguidance import regex_to_lark

    try:
        return f"/{regex_to_lark(pattern, '')}/"
    except ValueError as error:
        raise GrammarError(translated(str(error))) from None


def _escaped(text: str) -> str:
    """A regular expression of one text."""
    return "".join(char if char.isalnum() or char == " " else f"\\x{{{ord(char):x}}}" for char in text)


def lark(text: str) -> str:
    """A grammar in Lark, whichever of the two it is written in."""
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(text) > MAX_GRAMMAR:
        raise GrammarError(TOO_LONG)
    try:
        converted: str = gbnf_to_lark(text)
    except Exception as error:  # its parser raises what comes
        raise GrammarError(f"the EBNF grammar cannot be read: {error}") from None
    return converted


def grammars(first: str, others: dict[str, str]) -> str:
    """Grammars in Lark, of which the first refers to the others as `@name`."""
    return of_parts(first, *({"name": name, "lark_grammar": text} for name, text in others.items()))


def of_parts(first: str, *others: dict[str, Any]) -> str:
    """A grammar in Lark, and those with names to which it refers as `@name`."""
    return _grammar({"lark_grammar": first}, *others)


def _grammar(*parts: dict[str, Any]) -> str:
    text = json.dumps({"grammars": parts})
    if len(text) > MAX_GRAMMAR:
        raise GrammarError(TOO_LONG)
    return text
