"""What a beam search reports and is allowed, over a scripted engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import Served, refused

from slipway.api.generate import Run

ASKED: dict[str, Any] = {"prompt": "Tell me", "use_beam_search": True, "max_tokens": 3}


def ask(served: Served, **fields: Any) -> Any:
    answer = served.post("/v1/completions", ASKED | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def noted(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that are started from now on."""
    runs: list[Run] = []
    submit = served.front.submit

    def keep(*given: Any) -> Run:
        runs.append(submit(*given))
        return runs[-1]

    monkeypatch.setattr(served.front, "submit", keep)
    return runs


def test_as_many_alternatives_are_told_as_are_asked_for(served: Served) -> None:
    told = ask(served, logprobs=3)["choices"][0]["logprobs"]["top_logprobs"]
    assert [len(top) for top in told] == [3, 3, 3]


def test_an_echo_comes_with_its_log_probabilities(served: Served) -> None:
    told = ask(served, echo=True, logprobs=1)["choices"][0]["logprobs"]["token_logprobs"]
    prompt_tokens = len(served.tokenizer.encode("Tell me"))
    assert told == [None, *[-1.0] * (prompt_tokens - 1), *[-0.5] * 3]


def test_cached_tokens_are_those_of_the_prompts(start: Callable[..., Served]) -> None:
    served = start("--enable-prompt-tokens-details")
    usage = ask(served, prompt=["a b c", "d e f"], n=2)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4


def test_the_first_token_counts_when_the_first_step_is_done(start: Callable[..., Served]) -> None:
    served = start()
    answer = served.engine.answer

    def slow_but_for_the_first(request: Any) -> list[int]:
        time.sleep(0.4 * (len(served.engine.requests) > 1))
        return answer(request)

    served.engine.answer = slow_but_for_the_first
    begun = time.monotonic()
    ask(served)
    seconds = time.monotonic() - begun
    metrics = dict(line.rsplit(" ", 1) for line in served.get("/metrics").text.splitlines() if line)
    named = {name.partition("{")[0]: float(value) for name, value in metrics.items() if "{" in name}
    assert named["vllm:time_to_first_token_seconds_count"] == 1
    assert named["vllm:time_to_first_token_seconds_sum"] <= seconds - 0.4
    assert named["vllm:time_per_output_token_seconds_count"] == 2


def test_a_failed_search_keeps_its_reason(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = noted(served, monkeypatch)
    served.engine.failing = "the logits hold a NaN"
    answer = served.post("/v1/completions", ASKED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "request_failed")
    assert runs[0].error == "the logits hold a NaN"
    assert [output.finish_reason for output in runs[0].outputs] == ["error"]


def test_a_search_that_the_engine_took_with_it_says_so(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = start()
    runs = noted(served, monkeypatch)
    served.engine.gate.clear()
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(served.post, "/v1/completions", ASKED)
        served.engine.wait(lambda: bool(served.engine.requests))
        served.engine.die()
        assert answer.result().json()["error"]["code"] == "engine_dead"
    assert runs[0].error


def test_beams_with_their_prompts_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.api.products.MAX_BEAM_TOKENS", 100)
    body = ASKED | {"prompt": [[5] * 20, [6] * 20], "max_tokens": 10, "n": 2}
    refused(served.post("/v1/completions", body), 400, "use_beam_search", "come to 120 tokens")
    assert served.post("/v1/completions", body | {"n": 1}).status_code == 200
    assert served.post("/v1/completions", body | {"use_beam_search": False}).status_code == 200


def test_a_wrong_end_of_the_search_names_its_field(served: Served) -> None:
    answer = served.post("/v1/completions", ASKED | {"early_stopping": 5})
    refused(answer, 400, "early_stopping", 'true, false or "never"')
