"""Fields that a route does not have: the answer and the log say them, and --strict-requests refuses them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from serving import CHAT, MODEL, PLAIN, Served, refused

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {**PLAIN, "max_token": 3}, "max_token"),
    ("/v1/chat/completions", {**CHAT, "repetition_penality": 1.1}, "repetition_penality"),
    (
        "/v1/chat/completions",
        {**CHAT, "stream": True, "stream_options": {"usage": 1}},
        "stream_options.usage",
    ),
    (
        "/v1/messages",
        {
            **CHAT,
            "model": MODEL,
            "tool_choice": {"type": "none"},
            "tools": [{"name": "f", "input_schema": {"type": "object"}, "descripton": "It adds"}],
        },
        "tools[0].descripton",
    ),
    ("/v1/responses", {"input": "Hi", "max_output": 2, "max_output_tokens": 2}, "max_output"),
    ("/v1/messages", {**CHAT, "model": MODEL, "max_output": 2}, "max_output"),
    ("/tokenize", {"prompt": "Hi", "add_special_token": True}, "add_special_token"),
    ("/invocations", {**PLAIN, "seeds": 3}, "seeds"),
]


@pytest.mark.parametrize(("path", "body", "name"), CASES)
def test_a_field_that_is_left_aside_is_said_by_the_answer_and_once_by_the_log(
    served: Served, caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any], name: str
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        answer = served.post(path, body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["warning"] == f'299 slipway "{path} has no field \\"{name}\\""'
    told = [record.getMessage() for record in caplog.records if repr(name) in record.getMessage()]
    assert told == [f"{path} has no field {name!r}: it is left aside in every request that sends it"]


@pytest.mark.parametrize(("path", "body", "name"), CASES)
def test_strict_requests_refuses_it(
    start: Callable[..., Served], path: str, body: dict[str, Any], name: str
) -> None:
    answer = start("--strict-requests").post(path, body)
    assert answer.status_code == 400
    assert f'{path} has no field "{name}", which --strict-requests refuses.' in answer.text.replace(
        '\\"', '"'
    )


def test_a_misspelt_field_is_refused_with_the_one_that_was_meant(start: Callable[..., Served]) -> None:
    served = start("--strict-requests")
    refused(
        served.post("/v1/completions", {**PLAIN, "max_token": 3}),
        400,
        "max_token",
        "Did you mean max_tokens?",
    )
    refused(served.post("/v1/completions", {**PLAIN, "qqq": 3}), 400, "qqq", "Leave it out.")


@pytest.mark.parametrize("arguments", [(), ("--strict-requests",)])
def test_what_speaks_of_a_provider_is_no_fault(
    start: Callable[..., Served], arguments: tuple[str, ...]
) -> None:
    told = {
        "store": True,
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "service_tier": "auto",
        "user": "u",
    }
    answer = start(*arguments).post("/v1/chat/completions", {**CHAT, **told})
    assert answer.status_code == 200
    assert "warning" not in answer.headers


def test_names_that_clients_make_up_break_no_header_and_fill_no_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    odd = {'a"b\\c\r\nSet-Cookie: d=1': 1, "größe": 1, "x" * 10_000: 1}
    answer = served.post("/v1/completions", {**PLAIN, **odd})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert len(answer.headers["warning"]) < 2000
    for number in range(400):
        served.post("/tokenize", {"prompt": "a", f"n{number}": 1})
    assert sum("left aside" in record.getMessage() for record in caplog.records) <= 256
