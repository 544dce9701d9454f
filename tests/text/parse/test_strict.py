"""Strict tools: what a format's calls are held to is what its model writes, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from formats import WRITE, Call, Write

from grammars import accepts, compiled
from slipway.text.parse.formats import NAMES, call_format
from slipway.text.parse.written import tag_of
from slipway.text.structural_tag import of_structural_tag

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Bern"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {"weather": CITY, "now": {"type": "object"}}
HELD = [name for name in NAMES if call_format(name).written]
ALSO_HELD = [
    ("mistral", lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(a)}" for name, a in calls)),
    ("hermes", lambda calls: WRITE["hermes"](calls).replace(">\n", ">").replace("\n<", "<")),
]
WRITERS: list[tuple[str, Write]] = [*((name, WRITE[name]) for name in HELD), *ALSO_HELD]
ROME: Call = ("weather", {"city": "Rome", "days": 2})
NOW: Call = ("now", {"zone": ["any"]})


def grammar_of(name: str, *, parallel: bool = True) -> Any:
    tag = tag_of(call_format(name).written, SCHEMAS, parallel=parallel)
    return compiled(of_structural_tag({"format": tag}))


def test_the_formats_that_hold_are_those_of_the_manual() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    listed = manual.partition("behind a mark: ")[2].partition(". From")[0]
    assert sorted([*HELD, "openai"]) == re.findall("`(.+?)`", listed)


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_calls_are_held_to_the_schemas_and_the_text_round_them_is_free(name: str, write: Write) -> None:
    matcher = grammar_of(name)
    for calls in ([ROME], [NOW], [ROME, NOW, ROME]):
        assert accepts(matcher, write(calls)), write(calls)
    assert call_format(name).bare or accepts(matcher, f"I look.\n\n{write([ROME])}")
    for text in ("", "It is sunny.", " \n a < b [x] {} <tool", "12"):
        assert accepts(matcher, text)
    wrong: list[Call] = [("weather", {"city": "Ulm"}), ("weather", {}), ("whether", {}), ("now", {"a": 1})]
    for call in wrong[:3]:
        assert not accepts(matcher, write([call])), write([call])
        assert not accepts(matcher, write([ROME, call]))
    assert accepts(matcher, write(wrong[3:]))


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_without_parallel_calls_there_is_one(name: str, write: Write) -> None:
    matcher = grammar_of(name, parallel=False)
    assert accepts(matcher, write([ROME]).strip())
    assert accepts(matcher, "It is sunny.")
    assert not accepts(matcher, write([ROME, ROME]))
