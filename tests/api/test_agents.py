"""Sessions in the shapes that coding agents send, by their published request formats: every request is
answered, and the prompt has what it must have."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from serving import Served, prompt, says

import chat_templates

AUTO = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
CUT = '{"path": "a.py", "text": "once upo'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
TEMPLATES = {**chat_templates.ALL, "the model's own": None}


def text(*said: str, kind: str = "text") -> list[dict[str, str]]:
    return [{"type": kind, "text": one} for one in said]


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
    tools = [
        {"name": "Read", "description": "Reads", "input_schema": {"$schema": "x", **SCHEMA}},
        {"name": "Edit", "input_schema": SCHEMA, "eager_input_streaming": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ]
    header = "x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch=12345;"
    cached = {"cache_control": {"type": "ephemeral"}}
    body: dict[str, Any] = {
        "model": "",
        "max_tokens": 32,
        "system": [
            {"type": "text", "text": header},
            {"type": "text", "text": "You are Claude Code.", **cached},
            {"type": "text", "text": "Be brief.", **cached},
        ],
        "tools": tools,
        "metadata": {"user_id": '{"device_id":"d","session_id":"s"}'},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "messages": [{"role": "user", "content": text("<reminder>A</reminder>", "Read a.py")}],
    }
    shows(served, "/v1/messages?beta=true", body, "You are Claude Code.", "Be brief.", "Read a.py")
    assert "x-anthropic" not in prompt(served)
    uses = [
        {"type": "tool_use", "id": f"toolu_01{name}", "name": "Read", "input": {"path": name}}
        for name in ("a.py", "b.py")
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_01a.py", "content": text("line 1", "line 2")},
        {"type": "tool_result", "tool_use_id": "toolu_01b.py", "content": "no such file", "is_error": True},
    ]
    body["messages"] += [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                *text("I look."),
                *uses,
            ],
        },
        {"role": "user", "content": [*results, *text("[Request interrupted by user]")]},
        {"role": "system", "content": "The file has changed."},
        {"role": "user", "content": "Go on"},
    ]
    shows(
        served, "/v1/messages?beta=true", body, "Read a.py", "line 1", "no such file", "interrupted", "Go on"
    )
    assert "The file has changed." in prompt(served)
    assert "Go on" in prompt(served)
    body["messages"].append({"role": "assistant", "content": ""})
    shows(served, "/v1/messages?beta=true", body, "Go on")
    count = {name: body[name] for name in ("model", "system", "tools", "messages", "thinking")}
    assert served.post("/v1/messages/count_tokens?beta=true", count).json()["input_tokens"] > 50


def test_codex(served: Served) -> None:
    tools = [
        {"type": "function", "name": "shell", "description": "Runs", "strict": False, "parameters": SCHEMA},
        {"type": "custom", "name": "apply_patch", "description": "Patches",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "image_generation", "output_format": "png"},
        {"type": "local_shell"},
        {"type": "namespace", "name": "mcp__files", "description": "Files", "tools": [
            {"type": "function", "name": "read", "parameters": {}}]},
        {"type": "tool_search", "execution": "sync", "parameters": {}},
    ]  # fmt: skip
    body: dict[str, Any] = {
        "model": "",
        "instructions": "You are Codex.",
        "input": [
            {"type": "message", "role": "developer", "content": text("Sandbox on.", kind="input_text")},
            {"type": "message", "role": "user", "content": text("# AGENTS.md", kind="input_text")},
            {"type": "message", "role": "user", "content": text("Fix it", kind="input_text")},
        ],
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "detailed"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "key",
        "client_metadata": {"x": "y"},
        "max_output_tokens": 32,
    }
    shows(served, "/v1/responses", body, "You are Codex.", "Sandbox on.", "# AGENTS.md", "Fix it")
    body["input"] += [
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {"type": "function_call", "call_id": "call_1", "name": "shell", "arguments": CUT},
        {"type": "function_call_output", "call_id": "call_1", "output": "bad arguments"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin",
         "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "patched"},
        {"type": "local_shell_call", "call_id": "call_3", "status": "completed",
         "action": {"type": "exec", "command": ["ls"]}},
        {"type": "function_call_output", "call_id": "call_3", "output": text("a.py", kind="input_text")},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "ghost_snapshot", "ghost_commit": {"id": "c"}},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": text("Done.", kind="output_text")},
        {"type": "message", "role": "user", "content": text("Thanks", kind="input_text")},
    ]  # fmt: skip
    shows(served, "/v1/responses", body, "Fix it", "bad arguments", "patched", "a.py", "Done.", "Thanks")
    compacted = body | {"tools": [], "parallel_tool_calls": False}
    shows(served, "/v1/responses", compacted, "Fix it", "Thanks")


def test_opencode(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "read", "description": "Reads", "parameters": SCHEMA}}]
    body: dict[str, Any] = {
        "model": "",
        "max_tokens": 32,
        "temperature": 0,
        "top_p": 1,
        "tools": tools,
        "tool_choice": "auto",
        "reasoning_effort": "medium",
        "messages": [
            {"role": "system", "content": "You are OpenCode."},
            {"role": "system", "content": "Here is the environment."},
            {"role": "user", "content": "Read a.py"},
        ],
    }
    path = "/v1/chat/completions"
    shows(served, path, body, "You are OpenCode.", "Here is the environment.", "Read a.py")
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": "read", "arguments": arguments}}
        for index, arguments in enumerate(('{"path": "a.py"}', CUT, ""))
    ]
    body["messages"] += [
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": f"call_{index}", "content": f"result {index}"}
            for index in range(3)
        ),
        {"role": "assistant", "content": "Done.", "tool_calls": []},
        {"role": "user", "content": text("Thanks")},
    ]
    shows(served, path, body, "Read a.py", "result 0", "result 1", "result 2", "Done.", "Thanks")


def test_cline(served: Served) -> None:
    details = "<environment_details># Files</environment_details>"
    body: dict[str, Any] = {
        "model": "",
        "max_tokens": 32,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": "You are Cline."},
            {"role": "user", "content": text("<task>Fix it</task>", details)},
            {"role": "assistant", "content": text("<read_file><path>a.py</path></read_file>")},
            {"role": "user", "content": text("[read_file] Result:", "Error: no such file", details)},
        ],
    }
    path = "/v1/chat/completions"
    said = ("You are Cline.", "<task>Fix it</task>", "<read_file>", "Error: no such file", "# Files")
    shows(served, path, body, *said)
    body["messages"].append({"role": "assistant", "content": None, "tool_calls": None})
    body["messages"].append({"role": "user", "content": text("Go on")})
    shows(served, path, body, *said, "Go on")


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
