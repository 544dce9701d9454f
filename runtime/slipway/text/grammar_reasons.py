"""llguidance's reasons for refusing a grammar, in our words: what is wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

NO_TEXT = "no text that it allows can be written with the model's tokens"
TOO_LARGE = "it is too large or too complex; say it more simply"

LONGEST = 300
_SHOWN = 80
_KINDS = {
    "array": "a list",
    "bool": "true or false",
    "f64": "a number",
    "object": "an object",
    "positive integer": "a whole number from 0 on",
    "string": "a text",
    "u64": "a whole number from 0 on",
}
_TYPES = "array, boolean, integer, null, number, object or string"
_IMPOSSIBLE = (
    (r"schema is false", "a part of it that has to hold is false"),
    (r"incompatible types", "parts of it that hold together have different types"),
    (r"incompatible .*", "parts of it that hold together ask for different values"),
    (r"Regex is empty.*|Constant .*", "its pattern, format, lengths and values have no text in common"),
    (r"required > maxProperties", "it requires more properties than maxProperties"),
    (r"(\w+) > (\w+)", r"\1 is greater than \2"),
    (r"anyOf is empty|No options in anyOf", "its enum, anyOf or oneOf is empty"),
    (r"All options in anyOf are unsatisfiable", "none of its alternatives can hold"),
    (
        r"required property '(.*)' is unsatisfiable",
        r"the required property \1 can have no value, or is not allowed",
    ),
    (r"required item is unsatisfiable", "minItems asks for more items than can have a value"),
    (
        r"prefixItems\[(\d+)\] is unsatisfiable.*",
        r"minItems asks for the item \1 of prefixItems, which has none",
    ),
    (r"(?:range|minimum|maximum|exclusive).*", "no number is within its bounds"),
)
"""Why a schema has no value, behind `Unsatisfiable schema: `."""


def _impossible(found: re.Match[str]) -> str:
    why = found.group(1)
    for pattern, ours in _IMPOSSIBLE:
        if match := re.fullmatch(pattern, why):
            why = match.expand(ours)
            break
    return f"no value is valid by the schema: {why}"


def _unknown(found: re.Match[str]) -> str:
    keywords = re.findall(r'"([^"]*)"', found.group(1))
    names = ", ".join(keywords)
    many = len(keywords) > 1
    said = "keywords" if many else "keyword"
    return f"no grammar can hold the {said} {names}; leave out what {'they say' if many else 'it says'}"


def _of_kind(found: re.Match[str]) -> str:
    kind, keyword, value = found.groups()
    return f"{keyword} is {_KINDS.get(kind, kind)}, and not {value[:_SHOWN]}"


_TRANSLATED: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"NoExtension.*", NO_TEXT),
    (r"panic.*", TOO_LARGE),  # its own bounds of a grammar's symbols
    (r"Unimplemented keys: \[(.*)\]", _unknown),
    (r"Unsatisfiable schema: (.*)", _impossible),
    (r"Expected ([\w ]+) for '(\w+)', got (.*)", _of_kind),
    (r"Expected (\w+) for '(\w+)' item, got (.*)", lambda found: f"each of {_of_kind(found)}"),
    (r"(\w+) must be an (array|object)", lambda found: f"{found.group(1)} is {_KINDS[found.group(2)]}"),
    (r"type must be .*", f"type is {_TYPES}, or a list of these"),
    (r"Invalid type: (.*)", rf"type is {_TYPES}, and not \1"),
    (r"Unknown format: (.*)", r"the format \1 is not known; leave it out"),
    (
        r"min/maxProperties only supported when .*",
        "minProperties and maxProperties need all listed properties required, or additionalProperties false",
    ),
    (
        r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
        lambda found: (
            f"a name may match two of patternProperties, {_pattern(found.group(1))} and "
            f"{_pattern(found.group(2))}; make them differ from the beginning, or join them"
        ),
    ),
    (r"Pointer '(.*)' does not exist", r"$ref leads to #\1, which the schema does not have"),
    (r"Anchor '(.*)' does not exist", r"$ref leads to the anchor \1, which the schema does not have"),
    (
        r"Resource '(.*)' is not present .*",
        r"$ref leads to \1, and nothing is fetched; put that schema into $defs",
    ),
    (r"\$ref must be a string, got (.*)", r"$ref is a text, and not \1"),
    (
        r"circular references with sibling keys .*: (?:json-schema:///)?(.*)",
        r"$ref \1 leads back to itself beside other keywords",
    ),
    (r"Failed to generate regex for .* range.*", "no grammar can hold its minimum and maximum together"),
    (r"Value for 'multipleOf' .*", "multipleOf has too many digits for a grammar"),
    (
        r".*(?:fuel|too large|too many|exceed|[Ll]imit|Unable to determine if regex is empty).*",
        TOO_LARGE,
    ),
    (
        r"lookarounds not supported yet; (?:Start|End)\w*.* in regex /(.*)/\.?",
        lambda found: (
            f"the regular expression {_pattern(found.group(1))} has ^ or $ in its middle; say it without"
        ),
    ),
    (
        r"lookarounds not supported yet; Word.* in regex /(.*)/\.?",
        lambda found: (
            f"the regular expression {_pattern(found.group(1))} has a word boundary; say it without"
        ),
    ),
    (r"no start rule found", "the grammar has no rule named start"),
    (r"unknown special token: (\S+);.*", r"the model has no special token \1"),
)


def translated(said: str) -> str:
    """What a client should read instead of llguidance's own words; those where they are not known."""
    first, *lines = said.split("\n")
    place, inside = "", re.match(r"(?:at )?(\d+)\((\d+)\): (.*)", first)
    if inside is not None:
        place, first = f"line {inside.group(1)}, column {inside.group(2)}: ", inside.group(3)
    if "failed to compile JSON schema: " in first:  # a part of a grammar of ours or of a client's
        place, first = "", first.partition("failed to compile JSON schema: ")[2]
    if "regex parse error" in first or any(line.startswith("error: ") for line in lines):
        return _of_expression(lines)
    known = ((re.fullmatch(pattern, first), ours) for pattern, ours in _TRANSLATED)
    reason = next((_in_ours(found, ours) for found, ours in known if found is not None), first)
    within = re.search(r"while processing (?:json-schema:///)?(\S+)", said)
    return (place + reason + (f" (in {within.group(1)})" if within else ""))[:LONGEST]


def _in_ours(found: re.Match[str], ours: str | Callable[[re.Match[str]], str]) -> str:
    return found.expand(ours.replace("\\1", "\\g<1>")) if isinstance(ours, str) else ours(found)


def _of_expression(lines: list[str]) -> str:
    """Of a regular expression, which is repeated in a line of its own."""
    text = next((line.strip() for line in lines if line.strip()), "")
    why = next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "it is not valid"
    )
    if "look-around" in why:
        why = "look-around ((?=, (?!, (?<) is not supported; say it without"
    return f"the regular expression {_pattern(text)} cannot be read: {why}"


def _pattern(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
