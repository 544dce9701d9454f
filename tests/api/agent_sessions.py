"""Requests in the shapes that coding agents send, by their published formats.

Each function gives the bodies of a conversation, turn by turn. Histories have what goes wrong there, such as
arguments that were cut, calls that failed and turns that were interrupted.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]

AUTO = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
CUT = '{"path": "a.py", "text": "once upo'
RULES = " ".join(f"Rule {number}: read a file before you change it." for number in range(1, 21))
"""For prompts of several pages of the cache."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}


def text(*said: str, kind: str = "text") -> list[dict[str, str]]:
    return [{"type": kind, "text": one} for one in said]


def claude_code() -> list[Body]:
    """To `/v1/messages`. The last one ends with an empty message of the assistant."""
    tools = [
        {"name": "Read", "description": "Reads", "input_schema": {"$schema": "x", **SCHEMA}},
        {"name": "Edit", "input_schema": SCHEMA, "eager_input_streaming": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ]
    header = "x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch=12345;"
    cached = {"cache_control": {"type": "ephemeral"}}
    asked = {"role": "user", "content": text("<reminder>A</reminder>", "Read a.py")}
    body: Body = {
        "model": "",
        "max_tokens": 32,
        "system": [
            {"type": "text", "text": header},
            {"type": "text", "text": f"You are Claude Code. {RULES}", **cached},
            {"type": "text", "text": "Be brief.", **cached},
        ],
        "tools": tools,
        "metadata": {"user_id": '{"device_id":"d","session_id":"s"}'},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "messages": [asked],
    }
    uses = [
        {"type": "tool_use", "id": f"toolu_01{name}", "name": "Read", "input": {"path": name}}
        for name in ("a.py", "b.py")
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_01a.py", "content": text("line 1", "line 2")},
        {"type": "tool_result", "tool_use_id": "toolu_01b.py", "content": "no such file", "is_error": True},
    ]
    looked = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        *text("I look."),
        *uses,
    ]
    second = [
        asked,
        {"role": "assistant", "content": looked},
        {"role": "user", "content": [*results, *text("[Request interrupted by user]")]},
        {"role": "system", "content": "The file has changed."},
        {"role": "user", "content": "Go on"},
    ]
    empty = {"role": "assistant", "content": ""}
    return [body, body | {"messages": second}, body | {"messages": [*second, empty]}]


def codex() -> list[Body]:
    """To `/v1/responses`. The last one is for a summary, without tools."""
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
    asked = [
        {"type": "message", "role": "developer", "content": text("Sandbox on.", kind="input_text")},
        {"type": "message", "role": "user", "content": text("# AGENTS.md", kind="input_text")},
        {"type": "message", "role": "user", "content": text("Fix it", kind="input_text")},
    ]
    body: Body = {
        "model": "",
        "instructions": f"You are Codex. {RULES}",
        "input": asked,
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
    second = body | {"input": [
        *asked,
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
    ]}  # fmt: skip
    return [body, second, second | {"tools": [], "parallel_tool_calls": False}]


def opencode() -> list[Body]:
    """To `/v1/chat/completions`."""
    tools = [{"type": "function", "function": {"name": "read", "description": "Reads", "parameters": SCHEMA}}]
    asked = [
        {"role": "system", "content": f"You are OpenCode. {RULES}"},
        {"role": "system", "content": "Here is the environment."},
        {"role": "user", "content": "Read a.py"},
    ]
    body: Body = {
        "model": "",
        "max_tokens": 32,
        "temperature": 0,
        "top_p": 1,
        "tools": tools,
        "tool_choice": "auto",
        "reasoning_effort": "medium",
        "messages": asked,
    }
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": "read", "arguments": arguments}}
        for index, arguments in enumerate(('{"path": "a.py"}', CUT, ""))
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{index}", "content": f"result {index}"} for index in range(3)
    ]
    second = [
        *asked,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": calls},
        *results,
        {"role": "assistant", "content": "Done.", "tool_calls": []},
        {"role": "user", "content": text("Thanks")},
    ]
    return [body, body | {"messages": second}]


def cline() -> list[Body]:
    """To `/v1/chat/completions`, with calls that are text."""
    details = "<environment_details># Files</environment_details>"
    asked = [
        {"role": "system", "content": f"You are Cline. {RULES}"},
        {"role": "user", "content": text("<task>Fix it</task>", details)},
        {"role": "assistant", "content": text("<read_file><path>a.py</path></read_file>")},
        {"role": "user", "content": text("[read_file] Result:", "Error: no such file", details)},
    ]
    body: Body = {"model": "", "max_tokens": 32, "temperature": 0, "messages": asked}
    nothing = {"role": "assistant", "content": None, "tool_calls": None}
    return [body, body | {"messages": [*asked, nothing, {"role": "user", "content": text("Go on")}]}]
