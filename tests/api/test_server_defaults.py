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
