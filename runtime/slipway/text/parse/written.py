"""How calls are written by a model that is held to their tools' schemas: a structural tag of a format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Parts = tuple[str | re.Pattern[str], ...]
"""Texts, and expressions of what is written in more than one way."""

LINE_END = re.compile("\n?")
NAME = "NAME"


@dataclass(frozen=True, slots=True)
class Written:
    """A section of calls whose arguments are JSON.

    opens    from its mark to the first call; the mark is the first of them
    begin    before a call's arguments; NAME stands for the tool's
    end      behind them
    between  what parts a call from the next one; None where a section has one call
    closes   behind the last one
    bare     an output that begins with this text is a section without `opens`
    """

    opens: tuple[str, *Parts]
    begin: tuple[str, *Parts] = (f'{{"name": "{NAME}", "arguments": ',)
    end: Parts = ("}",)
    between: str | None = None
    closes: Parts = ()
    bare: str = ""


def tag_of(written: tuple[Written, ...], schemas: Mapping[str, Any], *, parallel: bool) -> dict[str, Any]:
    """The structural tag's format: free text, and calls of these tools.

    schemas   of the arguments, by the tools' names
    parallel  there may be several
    """
    if written[0].bare:
        (one,) = written
        calls = _calls(one, schemas, parallel)
        free = {"type": "regex", "pattern": rf"(?s:\s*([^\s{re.escape(one.bare)}].*)?)"}
        return {"type": "or", "elements": [calls, _sequence(one.opens, calls, one.closes), free]}
    sections = [
        {
            "type": "tag",
            "begin": one.opens[0],
            "content": _sequence(one.opens[1:], _calls(one, schemas, parallel), one.closes),
            "end": "",
        }
        for one in written
    ]
    marks = list(dict.fromkeys(one.opens[0] for one in written))
    return {"type": "triggered_tags", "triggers": marks, "tags": sections, "stop_after_first": not parallel}


def _calls(one: Written, schemas: Mapping[str, Any], parallel: bool) -> dict[str, Any]:
    tags = []
    for name, schema in schemas.items():
        spelled = json.dumps(name, ensure_ascii=False)[1:-1]
        first, *begin = (part.replace(NAME, spelled) if isinstance(part, str) else part for part in one.begin)
        content = _sequence(tuple(begin), {"type": "json_schema", "json_schema": schema}, one.end)
        tags.append({"type": "tag", "begin": first, "content": content, "end": ""})
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": one.between or "",
        "at_least_one": True,
        "stop_after_first": one.between is None or not parallel,
    }


def _sequence(before: Parts, middle: dict[str, Any], behind: Parts) -> dict[str, Any]:
    elements = [*map(_element, before), middle, *map(_element, behind)]
    return {"type": "sequence", "elements": elements}


def _element(part: str | re.Pattern[str]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "const_string", "value": part}
    return {"type": "regex", "pattern": part.pattern}
