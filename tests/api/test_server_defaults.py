"""What arguments say for every request: the template's variables, usage, comments of streams, access logs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from e2e.ground.patience import scaled
from serving import CHAT, PLAIN, Served

from slipway import exits
from slipway.api.responses import EventStream

Start = Callable[..., Served]
TIMES = (
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
)
TEMPLATE = "{{ messages[0].content }} {{ mood }} {{ pace }} {{ reasoning_effort }}"


def prompt_of(served: Served, **fields: Any) -> str:
    served.post("/v1/chat/completions", {**CHAT, **fields}).raise_for_status()
    return str(served.tokenizer.decode(served.engine.requests[-1].prompt_token_ids))


def test_variables_of_the_template_hold_where_a_request_says_none(start: Start) -> None:
    words = (
        "--chat-template",
        TEMPLATE,
        "--default-chat-template-kwargs",
        '{"mood": "calm", "pace": "slow"}',
    )
    served = start(*words, "--default-chat-template-kwargs.pace", "quick")
    assert prompt_of(served).endswith("Hi calm quick medium")
    assert prompt_of(served, chat_template_kwargs={"mood": "merry"}).endswith("Hi merry quick medium")
    assert prompt_of(served, reasoning_effort="low").endswith("Hi calm quick low")
    tokens = served.post("/tokenize", {"messages": CHAT["messages"]}).json()["tokens"]
    assert served.tokenizer.decode(tokens).endswith("Hi calm quick medium")


def test_a_variable_that_is_not_the_operators_ends_the_start(start: Start) -> None:
    with pytest.raises(exits.Exit, match="--default-chat-template-kwargs may not hold messages") as caught:
        start("--chat-template", TEMPLATE, "--default-chat-template-kwargs.messages", "[]")
    assert caught.value.exit_code is exits.BAD_ARGUMENTS


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", PLAIN), ("/v1/chat/completions", CHAT)])
@pytest.mark.parametrize("options", [None, {"include_usage": False}])
def test_the_usage_may_end_every_stream(
    start: Start, path: str, body: dict[str, Any], options: dict[str, bool] | None
) -> None:
    for arguments, ends in (((), False), (("--enable-force-include-usage",), True)):
        asked = {**body, "stream": True} | ({"stream_options": options} if options else {})
        *_, last, done = start(*arguments).post(path, asked).text.strip().split("\n\n")
        assert done == "data: [DONE]"
        assert bool(json.loads(last.removeprefix("data: ")).get("usage")) == ends


def test_streams_may_be_silent() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    stream = EventStream(nothing(), close=lambda: None, ping_seconds=0)
    asyncio.run(asyncio.wait_for(stream._send_pings(None), scaled(10)))  # type: ignore[arg-type]


def test_paths_may_be_left_out_of_the_access_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served = start("--disable-access-log-for-endpoints", "/ready,/version")
    for path in ("/ready", "/version", "/v1/models"):
        served.get(path).raise_for_status()
    logged = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert len(logged) == 1
    assert "/v1/models" in logged[0]


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", PLAIN), ("/v1/chat/completions", CHAT)])
def test_events_hold_as_many_tokens_as_the_interval_says(
    start: Start, path: str, body: dict[str, Any]
) -> None:
    """The first comes with the first token, the last with what is left; together they have every token."""
    asked = {**body, "max_tokens": 9, "n": 2, "stream": True, "return_token_ids": True}
    whole = start().post(path, {**asked, "stream": False}).json()["choices"]
    served = start("--stream-interval", "3")
    events = served.post(path, asked).text.strip().split("\n\n")[:-1]
    told: dict[int, list[list[int]]] = {0: [], 1: []}
    for choice in (choice for event in events for choice in json.loads(event[len("data: ") :])["choices"]):
        if choice.get("token_ids"):
            told[choice["index"]].append(choice["token_ids"])
    for index, parts in told.items():
        assert len(parts) <= 4  # of 1, 3, 3 and 2 tokens, or fewer where some came together
        assert all(len(part) >= 3 for part in parts[1:-1])
        assert [token for part in parts for token in part] == whole[index]["token_ids"]


def test_more_requests_than_may_queue_are_sent_elsewhere(start: Start) -> None:
    served = start("--max-num-queued-reqs", "1")
    with served.front.admission.entered():
        answer = served.post("/v1/completions", PLAIN)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "--max-num-queued-reqs" in answer.json()["error"]["message"]
    assert served.post("/v1/completions", PLAIN).status_code == 200


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", PLAIN), ("/v1/chat/completions", CHAT)])
def test_an_answer_may_tell_its_times(start: Start, path: str, body: dict[str, Any]) -> None:
    served = start("--enable-per-request-metrics")
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last, _ = served.post(path, {**body, **usage}).text.strip().split("\n\n")
    for told in (served.post(path, body).json(), json.loads(last.removeprefix("data: "))):
        times = told["metrics"]
        assert all(times[name] >= 0 for name in TIMES), times
        assert times["generation_time_ms"] == pytest.approx(times["mean_itl_ms"])  # of two tokens
        computed = times["time_to_first_token_ms"] + times["generation_time_ms"]
        assert times["tokens_per_second"] == pytest.approx(2000 / computed)
    assert "metrics" not in served.post(path, {**body, "n": 2}).json()
    assert "metrics" not in start().post(path, body).json()
