"""Sessions of coding agents with the demo model, by the clients that they use: every answer is complete, each
turn finds the prompt of the one before in the cache, and the server serves on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import agent_sessions
import anthropic
import openai
import pytest
from agent_sessions import AUTO, Body
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server

pytestmark = pytest.mark.slow

PAGE = 16
"""Tokens that the cache has or lacks together."""


class Turn(NamedTuple):
    """Tokens of a turn's prompt, those of them that were cached, and those of the answer."""

    prompt: int
    cached: int
    answer: int


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[LiveServer]:
    arguments = ("--max-model-len", "2048", "--disable-log-requests", "--enable-prompt-tokens-details")
    with live_server(demo_model, *AUTO, *arguments) as one:
        yield one
        assert "Traceback" not in "".join(one.lines)


@pytest.fixture(autouse=True)
def serves_on(server: LiveServer) -> Iterator[None]:
    yield
    metrics = server.metrics()
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    asked = b'{"prompt": "One, two,", "max_tokens": 2, "ignore_eos": true}'
    status, answer = server.post("/v1/completions", asked)
    assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 2)


def continued(first: Turn, second: Turn) -> None:
    """The second turn's prompt begins with the first one's, whose whole pages were kept."""
    assert first.prompt < second.prompt
    assert first.prompt - PAGE < second.cached < second.prompt
    assert 0 < first.answer <= 32
    assert 0 < second.answer <= 32


def whole(prompt: int) -> int:
    """Cached tokens of a prompt that came before: its whole pages, but for a token that is computed again."""
    return min(prompt // PAGE * PAGE, prompt - 1)


def split(body: Body, *named: str) -> dict[str, Any]:
    """Arguments of a client's method; what it does not know of the body goes along."""
    known = {name: value for name, value in body.items() if name in named}
    return known | {
        "extra_body": {"temperature": 0} | {name: body[name] for name in body.keys() - known.keys()}
    }


def test_claude_code(server: LiveServer) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=scaled(60))

    def turn(body: Body) -> Turn:
        arguments = split(body, "model", "max_tokens", "messages", "system", "tools")
        with client.beta.messages.stream(**arguments) as stream:
            events = [event for event in stream if event.type != "ping"]
            told = stream.get_final_message()
        assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
        kinds = [event.type for event in events]
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(told.content)
        assert kinds.count("message_delta") == 1
        texts = "".join(event.text for event in events if event.type == "text")
        assert texts == "".join(block.text for block in told.content if block.type == "text")
        assert texts or told.stop_reason == "tool_use"
        assert told.stop_reason in ("end_turn", "max_tokens", "tool_use")
        usage = told.usage
        cached = usage.cache_read_input_tokens or 0
        counts = ("model", "messages", "system", "tools", "thinking")
        counted = client.beta.messages.count_tokens(**{name: body[name] for name in counts})
        assert usage.input_tokens + cached == counted.input_tokens
        return Turn(counted.input_tokens, cached, usage.output_tokens)

    first, second, unfinished = map(turn, agent_sessions.claude_code())
    continued(first, second)
    # An empty message of the assistant is none.
    assert (unfinished.prompt, unfinished.cached) == (second.prompt, whole(second.prompt))


def test_codex(server: LiveServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=scaled(60))

    def turn(body: Body) -> Turn:
        arguments = split(body, *body.keys() - {"client_metadata"})
        events = [*client.responses.create(stream=True, **arguments)]
        assert [event.sequence_number for event in events] == [*range(len(events))]
        *_, last = events
        told = last.response
        assert last.type == f"response.{told.status}"
        assert told.status in ("completed", "incomplete")
        assert (told.incomplete_details is None) == (told.status == "completed")
        kinds = [event.type.removeprefix("response.") for event in events]
        assert kinds[:2] == ["created", "in_progress"]
        assert kinds.count("output_item.added") == kinds.count("output_item.done") == len(told.output)
        texts = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert texts == told.output_text
        assert texts or any(item.type != "message" for item in told.output)
        assert {tool.type for tool in told.tools} <= {"function", "custom"}
        usage = told.usage
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        return Turn(usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens)

    first, second, compacted = map(turn, agent_sessions.codex())
    continued(first, second)
    assert (compacted.prompt, compacted.cached) == (second.prompt, whole(second.prompt))


@pytest.mark.parametrize(
    "session", [agent_sessions.opencode, agent_sessions.cline], ids=lambda one: one.__name__
)
def test_sessions_of_chats(server: LiveServer, session: Any) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=scaled(60))

    def turn(body: Body) -> Turn:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = client.chat.completions.create(**body, **options)
        assert last.choices == []
        choices = [choice for chunk in chunks for choice in chunk.choices]
        assert len(choices) == len(chunks)
        assert len({chunk.id for chunk in [*chunks, last]}) == 1
        assert [choice.delta.role for choice in choices if choice.delta.role] == ["assistant"]
        *earlier, reason = (choice.finish_reason for choice in choices)
        assert reason in ("stop", "length", "tool_calls")
        assert not any(earlier)
        assert any(choice.delta.content or choice.delta.tool_calls for choice in choices)
        usage = last.usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        cached = usage.prompt_tokens_details.cached_tokens
        return Turn(usage.prompt_tokens, cached, usage.completion_tokens)

    continued(*map(turn, session()))
