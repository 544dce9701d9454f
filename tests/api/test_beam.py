"""Beam search: what it finds is what `transformers` finds, and what it does not have is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server

LIMIT = 320
"""--max-logprobs: bounds the width and the tokens that end a beam."""


@pytest.fixture(scope="module")
def server(tiny_models: Callable[[str], Path]) -> Iterator[LiveServer]:
    arguments = ("--dtype", "float32", "--max-logprobs", str(LIMIT), "--disable-log-requests")
    with live_server(tiny_models("llama"), *arguments) as running:
        yield running


def ask(server: LiveServer, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    asked = {"use_beam_search": True, "max_tokens": 12, **body}
    return httpx.post(server.url + path, json=asked, timeout=scaled(60))


@pytest.fixture(scope="module")
def found_by_transformers(tiny_models: Callable[[str], Path]) -> Callable[..., list[list[int]]]:
    """The `n` best outputs of each prompt, without what follows on the token that ended them."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_models("llama"), dtype=torch.float32)

    def find(prompt: list[int], ends: list[int], n: int, length: int, **how: Any) -> list[list[int]]:
        ids = torch.tensor([prompt])
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_return_sequences=n,
            max_new_tokens=length,
            do_sample=False,
            eos_token_id=[2, *ends],
            **how,
        )
        return [until_end(row[len(prompt) :].tolist(), [2, *ends]) for row in found]

    return find


def until_end(token_ids: list[int], ends: list[int]) -> list[int]:
    stops = [place for place, token_id in enumerate(token_ids) if token_id in ends]
    return token_ids[: stops[0] + 1] if stops else token_ids


@pytest.mark.torch
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.5, -1.0])
@pytest.mark.parametrize(("width", "n", "num_ends"), [(2, 1, 0), (4, 4, 200), (5, 2, 300)])
def test_it_finds_what_transformers_finds(
    server: LiveServer,
    found_by_transformers: Callable[..., list[list[int]]],
    width: int,
    n: int,
    num_ends: int,
    length_penalty: float,
    early_stopping: bool | str,
) -> None:
    drawn = random.Random(f"{width} {length_penalty} {early_stopping}")
    ends = drawn.sample(range(3, 512), num_ends)
    prompts = [[drawn.randrange(3, 512) for _ in range(drawn.randrange(1, 30))] for _ in range(3)]
    how = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    body = how | {"n": n, "best_of": width, "stop_token_ids": ends, "return_token_ids": True}
    answer = ask(server, prompt=prompts, **body)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    wanted = [
        row
        for prompt in prompts
        for row in found_by_transformers(prompt, ends, n, 12, num_beams=width, **how)
    ]
    assert [choice["token_ids"] for choice in choices] == wanted
    if num_ends:
        assert {choice["finish_reason"] for choice in choices} >= {"stop"}


def test_its_outputs_carry_their_log_probabilities_and_are_counted(server: LiveServer) -> None:
    before = server.metrics()
    how = {"return_token_ids": True, "return_tokens_as_token_ids": True}  # two tokens may have one text
    answer = ask(server, prompt="The way", n=3, logprobs=2, max_tokens=5, **how).json()
    totals = []
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(choice["token_ids"])
        assert all(len(top) in (2, 3) for top in logprobs["top_logprobs"])
        totals.append(sum(logprobs["token_logprobs"]) / len(choice["token_ids"]))
    assert totals == sorted(totals, reverse=True)
    assert answer["usage"]["completion_tokens"] == sum(
        len(choice["token_ids"]) for choice in answer["choices"]
    )
    after = server.metrics()
    assert after["vllm:request_success_total"] - before["vllm:request_success_total"] == 3


def test_it_works_for_chat(server: LiveServer) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    answer = ask(server, "/v1/chat/completions", messages=messages, n=2, temperature=0, return_token_ids=True)
    first, second = (choice["token_ids"] for choice in answer.json()["choices"])
    assert first != second


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"stream": True}, "use_beam_search", "streamed"),
        ({"n": 128, "stop_token_ids": [*range(200)]}, "n", "--max-logprobs"),
        ({"temperature": 0.7}, "temperature", "0.7"),
        ({"top_p": 0.9}, "top_p", "draws none"),
        ({"stop": ["x"]}, "stop", "draws none"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "draws none"),
        ({"guided_regex": "a+"}, "use_beam_search", "form"),
        ({"length_penalty": 1000}, "length_penalty", "1000"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty", "use_beam_search"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping", "use_beam_search"),
    ],
)
def test_what_it_does_not_have_is_refused(
    server: LiveServer, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = ask(server, prompt="a", **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_a_client_that_leaves_ends_its_search(server: LiveServer) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.url + "/v1/completions",
            json={"use_beam_search": True, "prompt": "a", "n": 20, "max_tokens": 500, "ignore_eos": True},
            timeout=httpx.Timeout(scaled(10), read=0.3),
        )
    for _ in range(500):
        if server.metrics()["vllm:num_requests_running"] == 0:
            break
        server.wait(0.02)
    assert server.metrics()["vllm:num_requests_running"] == 0
    assert ask(server, prompt="a", n=2).status_code == 200
