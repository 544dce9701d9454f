"""Streams that end early, badly or are not read: a scripted engine, for a real one does not fail at will."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from serving import MODEL, Served

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_aborts_its_requests(served: Served, stream: bool, n: int) -> None:
    served.engine.held = 2
    served.engine.gate.clear()
    connection = request_by_hand(served, {"messages": HELLO, "stream": stream, "n": n})
    served.engine.wait(lambda: len(served.engine.requests) == n)
    connection.close()
    served.engine.wait(lambda: len(served.engine.aborted) == n)
    served.engine.wait(lambda: served.front.admission.num_open == 0)


def test_a_client_that_leaves_in_the_middle_of_a_stream_aborts_it(served: Served) -> None:
    served.engine.held = 2
    served.engine.gate.clear()
    stream = served.openai().chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    next(iter(stream))
    stream.close()
    served.engine.wait(lambda: len(served.engine.aborted) == 1)


@pytest.mark.parametrize(
    ("path", "body", "ping"),
    [
        ("/v1/chat/completions", {"messages": HELLO}, ": ping"),
        ("/v1/completions", {"prompt": "Hello"}, ": ping"),
        ("/v1/responses", {"input": "Hello"}, ": ping"),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}, 'event: ping\ndata: {"type":"ping"}'),
    ],
)
def test_a_stream_that_waits_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], ping: str
) -> None:
    assert served.front.settings.sse_keep_alive_interval == 1
    monkeypatch.setattr(
        served.front, "settings", replace(served.front.settings, sse_keep_alive_interval=0.02)
    )
    served.engine.gate.clear()
    with httpx.stream("POST", served.url + path, json=body | {"stream": True}) as answer:
        seen = ""
        for text in answer.iter_text():
            seen += text
            if seen.count(f"{ping}\n\n") == 3:
                served.engine.gate.set()
    assert seen.count(f"{ping}\n\n") >= 3
    assert seen.rstrip().endswith(("[DONE]", "}"))


def test_a_failed_request_ends_its_stream_with_an_error(served: Served) -> None:
    served.engine.failing = "the logits hold a NaN"
    with pytest.raises(openai.APIError, match="NaN"):
        list(served.openai().chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    answer = served.post("/v1/chat/completions", {"messages": HELLO})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "request_failed"
    served.engine.failing = ""
    assert served.post("/v1/chat/completions", {"messages": HELLO}).status_code == 200


def test_a_request_too_large_for_the_engine_is_the_clients_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.dist.frames.MAX_FRAME_BYTES", 1000)
    answer = served.post("/v1/completions", {"prompt": [[5, 6], [300] * 500], "max_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_too_large")
    assert served.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
    served.engine.wait(lambda: served.front.admission.num_open == 0)


def test_one_failed_child_ends_the_others(served: Served) -> None:
    served.engine.failing = "the logits hold a NaN"
    answer = served.post("/v1/completions", {"prompt": ["a", "b"], "n": 2})
    assert answer.status_code == 500
    served.engine.wait(lambda: served.front.admission.num_open == 0)


def test_a_dead_engine_ends_every_stream_and_its_server_lives_no_more(start: Callable[..., Served]) -> None:
    served = start()
    served.engine.held = 2
    served.engine.gate.clear()
    stream = served.openai().chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    chunks = iter(stream)
    next(chunks)
    served.engine.die()
    with pytest.raises(openai.APIError, match="engine has gone"):
        list(chunks)
    sick = served.get("/live")
    assert (sick.status_code, sick.json()["status"]) == (503, "unhealthy")
    for path in ("/health", "/ping", "/ready"):
        told = served.get(path)
        assert (told.status_code, told.json()) == (503, {"phase": "dead", "done": 0, "total": 0})
    answer = served.post("/v1/chat/completions", {"messages": HELLO})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_dead"
    assert answer.headers["connection"] == "close"
    assert served.get("/metrics").status_code == 200


@pytest.mark.slow
def test_a_client_that_does_not_read_costs_constant_memory(start: Callable[..., Served]) -> None:
    """The server stops taking news for it: they merge in the one pending Delta of its stream."""
    served = start()
    length = 60_000
    served.engine.answer = lambda request: [300] * length
    served.front._model = enlarged(served, length + 100)
    connection = request_by_hand(served, {"messages": HELLO, "stream": True, "logprobs": True})
    served.engine.wait(lambda: served.engine.steps >= length, patience=60)
    stalled = served.front.admission.num_open
    assert stalled == 1
    received = bytearray()
    while chunk := connection.recv(1 << 20):
        received += chunk
        if received.endswith(b"0\r\n\r\n"):
            break
    events = [line for line in bytes(received).split(b"\n") if line.startswith(b"data: {")]
    tokens = 0
    for event in events:
        logprobs = json.loads(event[6:])["choices"][0]["logprobs"]
        tokens += len(logprobs["content"]) if logprobs else 0
    assert tokens == length
    assert len(events) < length / 2
    connection.close()


def enlarged(served: Served, max_model_len: int) -> Any:
    from slipway.api.model import ServedModel

    return ServedModel(served.front.model.texts, max_model_len, 512)


def request_by_hand(served: Served, body: dict[str, Any]) -> socket.socket:
    """Send a chat request over a plain socket with a small receive buffer, and read nothing."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    payload = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


def test_latencies_and_counts_are_measured(start: Callable[..., Served]) -> None:
    served = start()
    served.engine.gate.clear()
    served.engine.held = 1
    stream = served.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=5, stream=True, logprobs=True
    )
    for chunk in stream:
        served.engine.held += bool(chunk.choices[0].logprobs)  # one step for each token that came
    metrics = served.get("/metrics").text
    label = f'{{engine="0",model_name="{MODEL}"}}'
    assert f"vllm:time_to_first_token_seconds_count{label} 1.0" in metrics
    assert f"vllm:time_per_output_token_seconds_count{label} 4.0" in metrics
    assert f"vllm:e2e_request_latency_seconds_count{label} 1.0" in metrics
    assert f"vllm:generation_tokens_total{label} 5.0" in metrics
    assert (
        f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="{MODEL}"}} 1.0'
        in metrics
    )
    assert f"vllm:gpu_cache_usage_perc{label} 0.25" in metrics
