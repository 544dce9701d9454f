"""How lines flow: asked again where the application has too much to do, and never too many at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from batches import line, write_lines
from starlette.types import Message, Receive, Scope, Send

from slipway import exits
from slipway.batch import questions
from slipway.batch.application import ATTEMPTS, post
from slipway.batch.files import Input, Output
from slipway.batch.lines import Question
from slipway.batch.questions import Questions

PATHS = ("/v1/completions",)


class Busy:
    """Says 503 so many times, then answers with what it was asked."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        self.left -= 1
        status = 503 if self.left >= 0 else 200
        got = await receive()
        body = orjson.dumps({"path": scope["path"], "got": orjson.loads(got["body"])})
        start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"retry-after", b"0")],
        }
        await send(start)
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})


async def test_what_is_told_to_come_later_comes_later() -> None:
    busy = Busy(3)
    assert await post(busy, "/v1/x", b"[1]", "id") == (200, {"path": "/v1/x", "got": [1]})
    assert busy.asked == 4


async def test_what_is_told_so_too_often_is_answered_with_that() -> None:
    busy = Busy(10**6)
    assert (await post(busy, "/v1/x", b"[1]", "id"))[0] == 503
    assert busy.asked == ATTEMPTS


@pytest.fixture
def source(tmp_path: Path) -> Input:
    source = Input(str(write_lines(tmp_path / "in", [line(str(number)) for number in range(5)])))
    source.read()
    return source


async def test_lines_wait_until_there_is_room_for_them(
    source: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(next(iter(source.lines(bytearray(6))))[0].text)
    monkeypatch.setattr(questions, "OPEN_BYTES", 2 * size)
    flow = Questions(source, bytearray(6), PATHS)
    first, second = await flow.take(), await flow.take()
    assert first is not None
    assert second is not None
    assert isinstance(first.asks, Question)
    third = asyncio.create_task(flow.take())
    await asyncio.wait([third], timeout=0.05)
    assert not third.done()
    flow.give_back(first)
    assert (await asyncio.wait_for(third, 5)) is not None
    assert flow.num_open == 2


async def test_a_line_that_is_larger_than_the_room_goes_alone(
    source: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "OPEN_BYTES", 1)
    flow = Questions(source, bytearray(6), PATHS)
    for _ in range(5):
        taken = await asyncio.wait_for(flow.take(), 5)
        assert taken is not None
        flow.give_back(taken)
    assert await flow.take() is None


async def test_nothing_is_taken_once_it_has_stopped(source: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "OPEN_BYTES", 1)
    flow = Questions(source, bytearray(6), PATHS)
    assert await flow.take() is not None
    waiting = asyncio.create_task(flow.take())
    await asyncio.wait([waiting], timeout=0.05)
    flow.stop()
    assert await asyncio.wait_for(waiting, 5) is None
    assert await flow.take() is None


def test_a_full_disk_ends_the_run_with_its_code() -> None:
    with pytest.raises(exits.Exit, match="Cannot write /dev/full: No space left") as ended:
        Output("/dev/full", None).append(b"{}\n")
    assert ended.value.exit_code is exits.NO_SPACE
