"""Each request is one line of the log, with what an operator wants to know and nothing that users write."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from serving import CHAT, MODEL, PLAIN, Served

from slipway.engine.messages import Pools

SECRET = "my diagnosis"
TOLD = re.compile(
    rf"request (\S+): {MODEL}, (\d+) tokens in(?: \((\d+) cached\))?, (\d+) out, the first after \d+\.\d+ s"
    r"(?:, \d+\.\d tokens/s)?, (.*)"
)
Lines = Callable[[int], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """So many lines at the default level of all that speaks of requests, and no more."""
    caplog.set_level(logging.INFO)

    def found(count: int) -> list[str]:
        names = ("slipway.api", "slipway.api.requests", "uvicorn.access", "uvicorn.error")
        told = [record.getMessage() for record in caplog.records if record.name in names]
        assert len(told) == count, told
        caplog.clear()
        return told

    return found


def settled(served: Served) -> None:
    """A request ends a moment after its last byte."""
    served.engine.wait(lambda: served.front.admission.num_open == 0)


@pytest.mark.parametrize(
    ("path", "body", "prefix", "outputs", "reason"),
    [
        ("/v1/completions", PLAIN, "cmpl-", 1, "length"),
        ("/v1/completions", {**PLAIN, "n": 3, "temperature": 1}, "cmpl-", 3, "3 length"),
        ("/v1/chat/completions", CHAT, "chatcmpl-", 1, "length"),
        ("/v1/chat/completions", {**CHAT, "stream": True}, "chatcmpl-", 1, "length"),
        ("/v1/responses", {"input": SECRET, "max_output_tokens": 2}, "resp_", 1, "length"),
        ("/v1/messages", {**CHAT, "model": MODEL}, "msg_", 1, "length"),
    ],
)
def test_an_answer_is_one_line_with_its_numbers_and_no_word_of_it(
    served: Served, lines: Lines, path: str, body: dict[str, Any], prefix: str, outputs: int, reason: str
) -> None:
    if "prompt" in body:
        body = {**body, "prompt": SECRET}
    served.post(path, body).raise_for_status()
    settled(served)
    (line,) = lines(1)
    found = TOLD.fullmatch(line)
    assert found is not None, line
    assert found[1].startswith(prefix)
    assert int(found[2]) == sum(len(one.prompt_token_ids) for one in served.engine.requests) / outputs
    assert int(found[4]) == 2 * outputs
    assert found[5] == reason
    assert SECRET not in line


def test_a_prompt_that_pools_is_one_line(start: Callable[..., Served], lines: Lines) -> None:
    served = start(pools=Pools("embed", 4))
    lines(1)  # that it has started
    served.post("/v1/embeddings", {"input": [SECRET, SECRET]}).raise_for_status()
    settled(served)
    (line,) = lines(1)
    assert re.fullmatch(rf"request embd-\S+: {MODEL}, \d+ tokens in, \d+\.\d+ s, 2 stop", line), line


def test_a_client_that_leaves_is_one_line_that_says_so(served: Served, lines: Lines) -> None:
    served.engine.held = 1
    served.engine.gate.clear()
    with httpx.stream("POST", f"{served.url}/v1/completions", json={**PLAIN, "stream": True}) as answer:
        next(answer.iter_lines())
    served.engine.wait(lambda: bool(served.engine.aborted))
    settled(served)
    (line,) = lines(1)
    found = TOLD.fullmatch(line)
    assert found is not None, line
    assert (found[4], found[5]) == ("1", "abort")


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/v1/completions", {}, "400, prompt is missing"),
        ("POST", "/v1/chat/completions", {**CHAT, "temperature": -1}, "400, temperature must be at least 0"),
        ("POST", "/v1/messages", {**CHAT, "model": "other"}, "404, The model `other` does not exist."),
        ("GET", "/v1/completions", None, "405, GET does not work on /v1/completions; POST does."),
        ("GET", "/v1/nothing%1B[2J", None, r"404, There is no /v1/nothing\x1b[2J here"),
    ],
)
def test_a_refusal_is_one_line_with_its_reason(
    served: Served, lines: Lines, method: str, path: str, body: Any, said: str
) -> None:
    assert httpx.request(method, served.url + path, json=body).status_code >= 400
    (line,) = lines(1)
    assert line.startswith(f"{method} /v1/")
    assert said in line
    assert line.isprintable()


@pytest.mark.parametrize("unfit", [False, True])
def test_what_fails_in_the_engine_is_one_line_with_its_reason(
    served: Served, lines: Lines, unfit: bool
) -> None:
    served.engine.failing, served.engine.unfit = "the pool is gone", unfit
    answer = served.post("/v1/completions", PLAIN)
    assert answer.status_code == (400 if unfit else 500)
    settled(served)
    (line,) = lines(1)
    assert "the pool is gone" in line


def test_what_makes_no_order_is_a_line_of_the_http_server(served: Served, lines: Lines) -> None:
    served.get("/v1/models").raise_for_status()
    (line,) = lines(1)
    assert line.endswith('"GET /v1/models HTTP/1.1" 200')


def test_prompts_are_logged_where_that_is_asked_for_and_their_tokens_at_the_level_debug(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "slipway.api.requests")

    def told(*arguments: str) -> list[tuple[str, str]]:
        served = start(*arguments)
        caplog.clear()
        served.post("/v1/completions", {"prompt": SECRET, "max_tokens": 1})
        settled(served)
        records = [one for one in caplog.records if one.name == "slipway.api.requests"]
        return [(one.levelname, one.message) for one in records]

    assert len(told()) == len(told("--no-enable-log-requests")) == 1
    assert len(told("--enable-log-requests", "--disable-log-requests")) == 1
    prompt, tokens, ended = told("--enable-log-requests")
    assert (prompt[0], tokens[0], ended[0]) == ("INFO", "DEBUG", "INFO")
    assert repr(SECRET) in prompt[1]
    assert "SamplingParams(" in prompt[1]
    assert re.search(r"tokens \[\d+, ", tokens[1])
    cut, tokens, _ = told("--enable-log-requests", "--max-log-len", "4")
    assert f"prompt {SECRET[:4]!r}, " in cut[1]
    assert tokens[1].count(",") == 3


def test_parameters_are_logged_once_a_request_and_cut(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slipway.api.requests")
    long = {"allowed_token_ids": [*range(500)], "logit_bias": {str(token): 1 for token in range(500)}}
    body = {"prompt": ["a", "b"], "max_tokens": 1, "temperature": 0.25, **long}
    for limit in ("none", "3"):
        caplog.clear()
        start("--enable-log-requests", "--max-log-len", limit).post("/v1/completions", body)
        first, second = (record.message for record in caplog.records if ": prompt " in record.message)
        assert "temperature=0.25" in first
        shown = ", ".join(map(str, range(3 if limit == "3" else 16)))
        assert f"allowed_token_ids=({shown}, ...)" in first
        assert "temperature" not in second
        assert len(first) < 1200


def test_outputs_are_logged_where_that_is_asked_for(start: Callable[..., Served], lines: Lines) -> None:
    served = start("--enable-log-requests", "--enable-log-outputs", "--max-log-len", "5")
    lines(1)  # that it has started
    body = {**PLAIN, "n": 2, "max_tokens": 8, "temperature": 1}
    texts = [choice["text"] for choice in served.post("/v1/completions", body).json()["choices"]]
    settled(served)
    _, first, second, _ = lines(4)
    assert first.endswith(f": output 0 {texts[0][:5]!r}")
    assert second.endswith(f": output 1 {texts[1][:5]!r}")
