"""Grammars of outputs in channels, as gpt-oss writes them: answers and calls are held, thought is free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slipway.text.parse.harmony import CHANNEL, CONSTRAIN, END, MESSAGE, START
from slipway.text.structure import ANY, JsonStyle, of_parts, styled

OPENING = f"{START}assistant"
"""Where prompts end; an output goes on with a channel."""


def of_answer(grammar: str, special_ids: Mapping[str, int]) -> str:
    """Reasoning, then an answer that follows a grammar."""
    first, *others = json.loads(grammar)["grammars"]
    final = (
        f'{_token(CHANNEL, special_ids)} "final" {_json(special_ids)}? {_token(MESSAGE, special_ids)} @answer'
    )
    return of_parts(_start(special_ids, ("analysis",), final), {"name": "answer"} | first, *others)


def of_calls(
    tools: Mapping[str, Any], special_ids: Mapping[str, int], style: JsonStyle, *, forced: bool
) -> str:
    """Reasoning and what is said before calling, then a call.

    tools   the schema of each one's arguments, by its name
    forced  there is a call; else there may be an answer instead
    """
    channel, message = _token(CHANNEL, special_ids), _token(MESSAGE, special_ids)
    last = [] if forced else [f'{channel} "final" {_json(special_ids)}? {message} {ANY}']
    for name, schema in tools.items():
        header = f"{channel} {json.dumps(f'commentary to=functions.{name}')} {_json(special_ids)}? {message}"
        last.append(f"{header} %json {json.dumps(styled(schema, style))}")
    return of_parts(_start(special_ids, ("analysis", "commentary"), " | ".join(last)))


def _start(special_ids: Mapping[str, int], channels: tuple[str, ...], last: str) -> str:
    channel, message, end, start = (_token(one, special_ids) for one in (CHANNEL, MESSAGE, END, START))
    names = " | ".join(map(json.dumps, channels))
    free = f'{channel} ({names}) {message} {ANY} {end} {start} "assistant"'
    return f"start: free* last\nfree: {free}\nlast: {last}"


def _json(special_ids: Mapping[str, int]) -> str:
    return f'(" " {_token(CONSTRAIN, special_ids)} "json")'


def _token(text: str, special_ids: Mapping[str, int]) -> str:
    return f"<[{special_ids[text]}]>"
