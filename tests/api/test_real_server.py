"""What a newcomer tries first, on the demo model: real servers, a real client, a server that is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server
from slipway import exits
from slipway.load.demo import MODEL_NAME

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[LiveServer]:
    arguments = ("--served-model-name", MODEL_NAME, "--max-model-len", "2048")
    with live_server(
        demo_model, *arguments, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"
    ) as one:
        yield one


def client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_chat_is_answered_in_parts(server: LiveServer) -> None:
    stream = client(server).chat.completions.create(
        model=MODEL_NAME, messages=QUESTION, temperature=0, max_tokens=24, stream=True
    )
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "Paris" in "".join(parts)
    assert len([part for part in parts if part]) > 3


def test_a_tool_is_called_by_its_schema(server: LiveServer) -> None:
    answer = client(server).chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=60,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)


def test_a_request_that_asks_nonsense_is_refused_and_the_next_one_is_served(server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client(server).chat.completions.create(model=MODEL_NAME, messages=QUESTION, max_tokens=-3)
    assert refused.value.body["param"] == "max_tokens"
    asked = {"prompt": "One, two,", "max_tokens": 3, "extra_body": {"ignore_eos": True}}
    answer = client(server).completions.create(model=MODEL_NAME, **asked)
    assert answer.usage.completion_tokens == 3


def test_texts_that_mean_the_same_are_embedded_alike(demo_model: Path) -> None:
    with live_server(demo_model, "--task", "embed", "--max-model-len", "512") as server:
        (model,) = client(server).models.list()
        texts = [
            "A cat sleeps on the sofa.",
            "On the couch, a cat is asleep.",
            "Interest rates rose in March.",
        ]
        answer = client(server).embeddings.create(model=model.id, input=texts)
        cat, couch, rates = (one.embedding for one in answer.data)
        assert cosine(cat, couch) > cosine(cat, rates)
        assert cosine(cat, cat) == pytest.approx(1, abs=1e-5)


def test_an_engine_that_is_killed_ends_the_server_with_its_reason(demo_model: Path) -> None:
    with live_server(demo_model, "--max-model-len", "512") as server:
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert server.process.wait(scaled(30)) == exits.WORKER_KILLED.code
    assert "SIGKILL" in "".join(server.lines)


def cosine(one: list[float], other: list[float]) -> float:
    """Of vectors whose length is 1, as embeddings have it."""
    return sum(a * b for a, b in zip(one, other, strict=True))
