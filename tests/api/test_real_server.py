"""What a newcomer tries first, on the demo model: real servers, a real client, a server that is killed."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server
from slipway import exits
from slipway.load.demo import MODEL_NAME

UINT32 = 4
"""The type of a number in GGUF."""
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


def test_a_tool_without_parameters_is_called_without_any(server: LiveServer) -> None:
    for function in (
        {"name": "clock"},
        {"name": "clock", "parameters": {"type": "object", "properties": {}}},
    ):
        for choice in ("required", {"type": "function", "function": {"name": "clock"}}):
            answer = client(server).chat.completions.create(
                model=MODEL_NAME,
                messages=[{"role": "user", "content": "What time is it?"}],
                tools=[{"type": "function", "function": function}],
                tool_choice=choice,
                parallel_tool_calls=False,
                temperature=0,
                max_tokens=100,
            )
            (call,) = answer.choices[0].message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("clock", {})


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_count_the_characters_that_tokens_share_once(server: LiveServer, stream: bool) -> None:
    asks = {"model": MODEL_NAME, "temperature": 0, "logprobs": 0, "stream": stream}
    for fields in (
        {"prompt": "a😀b", "echo": True, "max_tokens": 1},
        {"prompt": "x", "max_tokens": 9, "extra_body": {"guided_choice": ["a😀b"]}},
    ):
        answer = client(server).completions.create(**asks, **fields)
        choices = [one.choices[0] for one in (answer if stream else [answer])]
        offsets = [offset for choice in choices for offset in choice.logprobs.text_offset]
        assert "".join(choice.text for choice in choices)[:3] == "a😀b"
        assert offsets[:5] == [0, 1, 1, 1, 2]


def test_a_request_that_asks_nonsense_is_refused_and_the_next_one_is_served(server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client(server).chat.completions.create(model=MODEL_NAME, messages=QUESTION, max_tokens=-3)
    assert refused.value.body["param"] == "max_tokens"
    asked = {"prompt": "One, two,", "max_tokens": 3, "extra_body": {"ignore_eos": True}}
    answer = client(server).completions.create(model=MODEL_NAME, **asked)
    assert answer.usage.completion_tokens == 3


def test_an_answer_ends_though_the_file_names_another_end(demo_model: Path, tmp_path: Path) -> None:
    key = b"tokenizer.ggml.eos_token_id"
    end, other = (key + struct.pack("<II", UINT32, token) for token in (2, 0))
    content = demo_model.read_bytes()
    assert content.count(end) == 1
    path = tmp_path / "demo.gguf"
    path.write_bytes(content.replace(end, other))
    with live_server(path, "--max-model-len", "512") as server:
        answer = client(server).chat.completions.create(
            model="", messages=QUESTION, temperature=0, max_tokens=60
        )
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("The capital of France is Paris.", "stop")


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
