"""Sessions in the shapes that coding agents send, by their published request formats: every request is
answered, and the prompt has what it must have."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import agent_sessions
import pytest
from agent_sessions import AUTO, SCHEMA
from serving import Served, prompt, says

import chat_templates

TEMPLATES = {**chat_templates.ALL, "the model's own": None}


@pytest.fixture(params=TEMPLATES, scope="module")
def served(
    request: pytest.FixtureRequest,
    start_for_module: Callable[..., Served],
    tmp_path_factory: pytest.TempPathFactory,
) -> Served:
    source = TEMPLATES[request.param]
    if source is None:
        return start_for_module(*AUTO, max_model_len=4096)
    file = tmp_path_factory.mktemp("template") / "own.jinja"
    file.write_text(source, encoding="utf-8")
    return start_for_module(*AUTO, "--chat-template", str(file), max_model_len=4096)


def shows(served: Served, path: str, body: dict[str, Any], *said: str) -> None:
    """It is answered, streamed and whole, and the prompt has these texts in this order."""
    for stream in (False, True):
        answer = served.post(path, body | {"stream": stream})
        assert answer.status_code == 200, answer.text
        assert "error" not in answer.text.replace('"error":null', "")
    shown, at = prompt(served), 0
    for one in said:
        assert one in shown[at:], f"{one!r} is missing behind {shown[:at]!r} in {shown[at:]!r}"
        at = shown.index(one, at) + len(one)


def test_claude_code(served: Served) -> None:
    path = "/v1/messages?beta=true"
    first, second, unfinished = agent_sessions.claude_code()
    shows(served, path, first, "You are Claude Code.", "Be brief.", "Read a.py")
    assert "x-anthropic" not in prompt(served)
    shows(served, path, second, "Read a.py", "line 1", "no such file", "interrupted", "Go on")
    assert "The file has changed." in prompt(served)
    assert "Go on" in prompt(served)
    shows(served, path, unfinished, "Go on")
    count = {name: unfinished[name] for name in ("model", "system", "tools", "messages", "thinking")}
    assert served.post("/v1/messages/count_tokens?beta=true", count).json()["input_tokens"] > 50


def test_codex(served: Served) -> None:
    path = "/v1/responses"
    first, second, compacted = agent_sessions.codex()
    shows(served, path, first, "You are Codex.", "Sandbox on.", "# AGENTS.md", "Fix it")
    shows(served, path, second, "Fix it", "bad arguments", "patched", "a.py", "Done.", "Thanks")
    shows(served, path, compacted, "Fix it", "Thanks")


def test_opencode(served: Served) -> None:
    path = "/v1/chat/completions"
    first, second = agent_sessions.opencode()
    shows(served, path, first, "You are OpenCode.", "Here is the environment.", "Read a.py")
    shows(served, path, second, "Read a.py", "result 0", "result 1", "result 2", "Done.", "Thanks")


def test_cline(served: Served) -> None:
    path = "/v1/chat/completions"
    first, second = agent_sessions.cline()
    said = ("You are Cline.", "<task>Fix it</task>", "<read_file>", "Error: no such file", "# Files")
    shows(served, path, first, *said)
    shows(served, path, second, *said, "Go on")


@pytest.fixture
def own(start: Callable[..., Served]) -> Served:
    return start(*AUTO)


LOOKUP = {"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {}}}
OTHERS = [{"type": "web_search"}, {"type": "namespace", "name": "files", "tools": []}]


def test_tools_of_other_kinds_are_left_out_and_the_log_says_so_once(
    own: Served, caplog: pytest.LogCaptureFixture
) -> None:
    unheard = {"type": "unheard_of"}
    with caplog.at_level(logging.WARNING, "slipway.api"):
        for _ in range(2):
            answer = own.post("/v1/responses", {"input": "Hi", "tools": [LOOKUP, *OTHERS, unheard]})
            assert answer.status_code == 200
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function"]
    assert sum("unheard_of" in record.message for record in caplog.records) == 1
    chat = {"type": "function", "function": {"name": "lookup"}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    assert own.post("/v1/chat/completions", body | {"tools": [chat, *OTHERS]}).status_code == 200
    theirs = {"name": "lookup", "input_schema": SCHEMA}
    bash = {"type": "bash_20250124", "name": "bash"}
    assert own.post("/v1/messages", body | {"tools": [theirs, bash]}).status_code == 200
    named = {"type": "tool", "name": "bash"}
    refused = own.post("/v1/messages", body | {"tools": [theirs, bash], "tool_choice": named})
    assert (refused.status_code, "not among the tools" in refused.text) == (400, True)


PATCH = {"type": "custom", "name": "patch", "description": "Patches files"}


def test_a_custom_tool_is_offered_as_a_function_and_answered_as_it_was_asked_for(own: Served) -> None:
    written = json.dumps({"name": "patch", "arguments": {"input": '*** "é"\n'}})
    says(own, f"<tool_call>\n{written}\n</tool_call>")
    body = {"input": "Hi", "tools": [PATCH, LOOKUP]}
    answer = own.openai().responses.create(model="scripted", **body)  # type: ignore[call-overload]
    (item,) = answer.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "patch", '*** "é"\n')
    assert [tool.type for tool in answer.tools] == ["custom", "function"]
    events = [*own.openai().responses.create(model="scripted", stream=True, **body)]  # type: ignore[call-overload]
    kinds = [event.type.removeprefix("response.") for event in events[2:-1]]
    whole = ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
    assert kinds == ["output_item.added", *whole, "output_item.done"]
    assert events[3].delta == events[4].input == item.input
    choice = {"type": "custom", "name": "patch"}
    says(own, '{"input": "x"}')
    (item,) = own.openai().responses.create(model="scripted", tool_choice=choice, **body).output  # type: ignore[call-overload]
    assert (item.type, item.input) == ("custom_tool_call", "x")
    assert '"required": ["input"]' in own.engine.requests[-1].grammar
