"""Structural tags: texts whose parts, between a beginning and an end, are held to grammars of their own.

Two forms are known: `{"structures": […], "triggers": […]}` and `{"format": {…}}`, whose formats nest.
Source of both: xgrammar's structural tags, which vLLM takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from slipway.text.errors import GrammarError
from slipway.text.structure import (
    ANY,
    JSON,
    MAX_GRAMMAR,
    TOO_LONG,
    JsonStyle,
    grammars,
    lark,
    regex_terminal,
    styled,
)

MAX_DEPTH = 32
MAX_TAGS = 512


def of_structural_tag(tag: Any, style: JsonStyle = JSON, special_ids: Mapping[str, int] | None = None) -> str:
    """The grammar of a structural tag, or of the JSON text of one.

    special_ids  of the texts that are special tokens, which are drawn as such
    Raises GrammarError.
    """
    if isinstance(tag, str):
        try:
            tag = json.loads(tag)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the structural tag is not valid JSON: {error}") from None
    match tag:
        case {"format": dict(wanted)}:
            pass
        case {"structures": list(structures), "triggers": list(triggers)}:
            wanted = {"type": "triggered_tags", "triggers": triggers, "tags": list(map(_as_tag, structures))}
        case _:
            raise GrammarError("a structural tag has a format, or structures and triggers")
    try:
        return _Writing(style, special_ids or {}).whole(wanted)
    except RecursionError:
        raise GrammarError("the structural tag's JSON nests too deeply") from None


def _as_tag(structure: Any) -> dict[str, Any]:
    match structure:
        case {"begin": begin, "end": end, "schema": schema}:
            return {"begin": begin, "end": end, "content": {"type": "json_schema", "json_schema": schema}}
    raise GrammarError("each of structures has begin, schema and end")


class _Writing:
    """Formats in, Lark out: a rule for each that needs a name."""

    def __init__(self, style: JsonStyle, special_ids: Mapping[str, int]) -> None:
        self._style = style
        self._special_ids = special_ids
        self._rules: list[str] = []
        self._others: dict[str, str] = {}
        self._length = 0
        """Characters of both."""
        self._formats: dict[str, Callable[[dict[str, Any], int], str]] = {
            "any_text": lambda wanted, depth: ANY,
            "const_string": lambda wanted, depth: self._literal(_text(wanted, "value")),
            "grammar": lambda wanted, depth: self._nested(_text(wanted, "grammar")),
            "json_schema": lambda wanted, depth: self._json(wanted),
            "or": lambda wanted, depth: f"({' | '.join(self._elements(wanted, depth))})",
            "regex": lambda wanted, depth: regex_terminal(_text(wanted, "pattern")),
            "sequence": lambda wanted, depth: f"({' '.join(self._elements(wanted, depth))})",
            "tag": self._tag,
            "tags_with_separator": self._separated,
            "triggered_tags": self._triggered,
        }

    def whole(self, wanted: dict[str, Any]) -> str:
        start = self._format(wanted, 0)
        return grammars("\n".join([f"start: {start}", *self._rules]), self._others)

    def _format(self, wanted: Any, depth: int) -> str:
        kind = wanted.get("type") if isinstance(wanted, dict) else None
        if not isinstance(kind, str) or kind not in self._formats:
            known = ", ".join(sorted(self._formats))
            raise GrammarError(f"a format's type is one of {known}, and not {json.dumps(kind)[:80]}")
        if depth > MAX_DEPTH:
            raise GrammarError(f"formats nest more than {MAX_DEPTH} levels deep")
        text = self._formats[kind](wanted, depth + 1)
        _check_length(self._length + len(text))
        return text

    def _elements(self, wanted: dict[str, Any], depth: int) -> list[str]:
        return [self._format(element, depth) for element in _list(wanted, "elements")]

    def _json(self, wanted: dict[str, Any]) -> str:
        return f"%json {json.dumps(styled(wanted.get('json_schema'), self._style))}"

    def _nested(self, text: str) -> str:
        name = f"grammar_{len(self._others)}"
        self._others[name] = lark(text)
        self._grow(self._others[name])
        return f"@{name}"

    def _tag(self, wanted: dict[str, Any], depth: int, begun: str = "") -> str:
        """From its beginning, of which the part in front is `begun`, to its end."""
        begin, end = _text(wanted, "begin")[len(begun) :], _text(wanted, "end")
        content = wanted.get("content")
        if end and content == {"type": "any_text"}:
            return f"{self._literal(begin)} {self._until(end)}"
        return f"{self._literal(begin)} {self._format(content, depth)} {self._literal(end)}"

    def _triggered(self, wanted: dict[str, Any], depth: int) -> str:
        """Free text; after each trigger in it, one of the tags that begin with that."""
        tags = _list(wanted, "tags")
        begins = [_text(tag, "begin") for tag in tags]
        options = []
        for trigger in _triggers(wanted):
            begun = [tag for tag, begin in zip(tags, begins, strict=True) if begin.startswith(trigger)]
            if not begun:
                raise GrammarError(f"no tag begins with the trigger {json.dumps(trigger)[:80]}")
            inside = " | ".join(self._tag(tag, depth, trigger) for tag in begun)
            options.append(f"{self._until(trigger)} ({inside})")
        for begin in begins:
            if not begin.startswith(tuple(wanted["triggers"])):
                raise GrammarError(f"no trigger begins the tag {json.dumps(begin)[:80]}")
        one = self._rule(f": {' | '.join(options)}")
        if wanted.get("stop_after_first"):
            return one if wanted.get("at_least_one") else f"({one} | {ANY})"
        return f"{one}{'+' if wanted.get('at_least_one') else '*'} {ANY}"

    def _until(self, text: str) -> str:
        """Any text, up to and with this one."""
        if text.startswith(tuple(filter(None, self._special_ids))):
            return f"{ANY} {self._literal(text)}"
        return self._rule(f"[lazy]: {ANY} {json.dumps(text)}")

    def _separated(self, wanted: dict[str, Any], depth: int) -> str:
        tags = [self._tag(tag, depth) for tag in _list(wanted, "tags")]
        one = self._rule(f": {' | '.join(tags)}")
        if wanted.get("stop_after_first"):
            return one if wanted.get("at_least_one") else f"{one}?"
        several = f"{one} ({self._literal(_text(wanted, 'separator'))} {one})*"
        return several if wanted.get("at_least_one") else f"({several})?"

    def _rule(self, text: str) -> str:
        """A rule of its own; its name."""
        name = f"rule_{len(self._rules)}"
        self._rules.append(name + text)
        self._grow(text)
        return name

    def _grow(self, text: str) -> None:
        self._length += len(text)
        _check_length(self._length)

    def _literal(self, text: str) -> str:
        """A text, its special tokens as such."""
        within = sorted((one for one in self._special_ids if one and one in text), key=len, reverse=True)
        if not within:
            return json.dumps(text)
        parts = filter(None, re.split(f"({'|'.join(map(re.escape, within))})", text))
        ids = self._special_ids
        return " ".join(f"<[{ids[part]}]>" if part in ids else json.dumps(part) for part in parts)


def _check_length(length: int) -> None:
    if length > MAX_GRAMMAR:
        raise GrammarError(TOO_LONG)


def _triggers(wanted: dict[str, Any]) -> list[str]:
    """Texts of which none begins another: each tag is behind one of them, then, and is written once."""
    triggers = _list(wanted, "triggers")
    for trigger in triggers:
        if not isinstance(trigger, str) or not trigger:
            raise GrammarError(f"each of triggers is a text, and not {json.dumps(trigger)[:80]}")
    ordered = sorted(triggers)
    for one, next_ in pairwise(ordered):  # all that begin with one text stand behind it
        if next_.startswith(one):
            shown = f"{json.dumps(one)[:80]} and {json.dumps(next_)[:80]}"
            raise GrammarError(f"of two triggers one begins the other: {shown}; leave out the longer")
    return triggers


def _text(wanted: Any, key: str) -> str:
    value = wanted.get(key) if isinstance(wanted, dict) else None
    if not isinstance(value, str):
        raise GrammarError(f"{key} of a format should be a text, and is {json.dumps(value)[:80]}")
    return value


def _list(wanted: dict[str, Any], key: str) -> list[Any]:
    value = wanted.get(key)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_TAGS:
        raise GrammarError(f"{key} of a format should be a list of 1 to {MAX_TAGS} members")
    return value
