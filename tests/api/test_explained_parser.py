"""What the log says at the level DEBUG of how outputs are read: `data/explained-parse.txt`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import CHAT, Served, says

GOLDEN = Path(__file__).parent / "data" / "explained-parse.txt"
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]


def ask(served: Served, number: int, **fields: Any) -> None:
    body = {**CHAT, "max_tokens": 99, **fields}
    served.post("/v1/chat/completions", body, headers={"X-Request-Id": f"r{number}"}).raise_for_status()


def test_each_turn_of_an_output_is_a_line_without_its_words(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "slipway.api.parsers")
    served = start("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    says(
        served,
        "<think>Hm.</think>",
        "Well: ",
        '<tool_call>{"name": "now", "arguments": {"x": 1}}</tool_call>',
    )
    for stream in (False, True):
        ask(served, 1, tools=TOOLS, stream=stream)
    says(served, '<tool_call>{"name": "now", "arguments": {"x"')
    ask(served, 2, tools=TOOLS, parallel_tool_calls=False)
    says(served, '[{"name": "now", "parameters": {}}]')
    ask(served, 3, tools=TOOLS, tool_choice="required")
    named = {"type": "function", "function": {"name": "now"}}
    says(served, "{}")
    ask(served, 4, tools=TOOLS, tool_choice=named)
    told = [record.getMessage() for record in caplog.records if record.name == "slipway.api.parsers"]
    assert "\n".join([*told, ""]) == GOLDEN.read_text()


def test_nothing_is_wrapped_at_other_levels(served: Served) -> None:
    says(served, "Hi")
    ask(served, 1)
    assert not logging.getLogger("slipway.api.parsers").isEnabledFor(logging.DEBUG)
