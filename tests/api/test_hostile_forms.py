"""Bodies of the translated endpoints with anything in any place: told what is wrong, never a 500."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Served

TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
RESPONSES: dict[str, Any] = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "so"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ],
    "instructions": "Be brief.",
    "tools": [{"type": "function", "name": "f", "parameters": TOOL_SCHEMA, "strict": True}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": TOOL_SCHEMA}},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "top_logprobs": 1,
    "truncation": "disabled",
    "max_output_tokens": 2,
    "stream": True,
    "temperature": 0.5,
    "previous_response_id": None,
}
MESSAGES: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "so", "signature": "s"},
                {"type": "text", "text": "Hello"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"city": "Bern"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "42"}]},
    ],
    "tools": [{"name": "f", "input_schema": TOOL_SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 9},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": TOOL_SCHEMA}},
    "metadata": {"user_id": "me"},
    "stop_sequences": ["x"],
    "max_tokens": 2,
    "stream": True,
}
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("typename", max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything within a body."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*at, key)
            yield from places(value[key], (*at, key))


def with_junk(body: dict[str, Any], place: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = junk
    return changed


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES)])
def test_the_body_itself_is_answered(shared_server: Served, path: str, body: dict[str, Any]) -> None:
    answer = shared_server.post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/messages/count_tokens"])
@settings(max_examples=150)
@given(data=st.data())
def test_junk_in_any_place_does_no_harm(shared_server: Served, path: str, data: st.DataObject) -> None:
    body = RESPONSES if path == "/v1/responses" else MESSAGES
    place = data.draw(st.sampled_from(list(places(body))))
    answer = shared_server.post(path, with_junk(body, place, data.draw(JUNK)))
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/v1/responses", ("text", "format", "schema")),
        ("/v1/responses", ("tools", 0, "parameters")),
        ("/v1/messages", ("messages", 1, "content", 2, "input")),
        ("/v1/messages", ("tools", 0, "input_schema")),
    ],
)
def test_deep_values_are_refused_or_borne(shared_server: Served, path: str, place: tuple[Any, ...]) -> None:
    body = RESPONSES if path == "/v1/responses" else MESSAGES
    for depth in (50, 70, 500):
        answer = shared_server.post(path, with_junk(body, place, nested(depth)))
        assert answer.status_code in ((200, 400) if depth < 60 else (400,)), answer.text


def test_more_messages_than_may_be_are_refused(shared_server: Served) -> None:
    results = [{"type": "tool_result", "tool_use_id": "c", "content": "1"}] * 1000
    body = {"messages": [{"role": "user", "content": results}] * 5, "max_tokens": 1}
    answer = shared_server.post("/v1/messages", body)
    assert answer.status_code == 400
    assert "4096" in answer.json()["error"]["message"]
