"""Log-probabilities of prompts and outputs: what is computed, where it is written, who sees what."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest
from serving import Served

from slipway.api import logprobs
from slipway.api.generate import _merged
from slipway.engine.messages import Delta
from slipway.engine.stream import Stream


def test_an_echo_and_prompt_logprobs_each_have_their_own_number(served: Served) -> None:
    body = {"prompt": "Tell me", "max_tokens": 1, "echo": True}
    for echoed, beside in ((0, 1), (1, 0)):
        asked = body | {"logprobs": echoed, "prompt_logprobs": beside}
        (choice,) = served.post("/v1/completions", asked).json()["choices"]
        assert len(choice["logprobs"]["top_logprobs"][1]) == 1 + echoed
        assert len(choice["prompt_logprobs"][1]) == 1 + beside


@pytest.mark.parametrize("stream", [False, True])
def test_the_outputs_of_a_prompt_share_its_log_probabilities(served: Served, stream: bool) -> None:
    body = {"prompt": ["Tell me", "a b c"], "n": 3, "max_tokens": 1, "echo": True, "logprobs": 1}
    if stream:
        answer = served.post("/v1/completions", body | {"stream": True}).text
        events = [json.loads(line[6:]) for line in answer.split("\n\n") if line.startswith("data: {")]
        choices = sorted((one["choices"][0] for one in events), key=lambda choice: choice["index"])
    else:
        choices = served.post("/v1/completions", body | {"prompt_logprobs": 1}).json()["choices"]
    assert [request.params.num_prompt_logprobs for request in served.engine.requests] == [1, -1, -1] * 2
    for first, *others in (choices[:3], choices[3:]):
        assert first["logprobs"]["token_logprobs"][1] == -1.0
        for other in others:
            assert other["logprobs"] == first["logprobs"]
            assert other.get("prompt_logprobs") == first.get("prompt_logprobs")
            assert ("prompt_logprobs" in other) != stream


async def test_the_outputs_of_a_prompt_wait_for_news_of_the_first() -> None:
    first, second = (SimpleNamespace(number=n, stream=Stream(), finish_reason="") for n in (0, 1))
    second.stream.put(Delta("1", [5]))
    merged = _merged([[first, second]])  # type: ignore[list-item]
    news = asyncio.ensure_future(anext(merged))
    await asyncio.sleep(0.01)
    assert not news.done()
    first.stream.put(Delta("0", [6]))
    assert (await news)[1].token_ids == [6]
    assert (await anext(merged))[1].token_ids == [5]
    await merged.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_many_log_probabilities_are_written_beside_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("slipway.api.answer.QUICK_LOGPROBS", 20)
    where: list[str] = []
    floor = logprobs.floor

    def noted(value: float) -> float:
        where.append(threading.current_thread().name)
        return floor(value)

    monkeypatch.setattr(logprobs, "floor", noted)
    chat = path == "/v1/chat/completions"
    body = {"logprobs": True, "top_logprobs": 1} if chat else {"logprobs": 1}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    for length, beside in ((10, False), (11, True)):
        where.clear()
        served.post(path, body | {"max_tokens": length})
        assert where
        assert all(name.startswith("text") == beside for name in where)
