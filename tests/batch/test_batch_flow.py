"""How lines flow: asked again where the application has too much to do, and never too many at once."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import orjson
import pytest
from batches import line, write_lines
from e2e.ground.patience import scaled
from starlette.types import Message, Receive, Scope, Send

from slipway import exits
from slipway.batch import files, questions, run
from slipway.batch.application import ATTEMPTS, post
from slipway.batch.files import Input, Output, Written
from slipway.batch.lines import Question
from slipway.batch.progress import Progress
from slipway.batch.questions import Questions
from slipway.batch.run import Batch

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
    assert (await asyncio.wait_for(third, scaled(5))) is not None
    assert flow.num_open == 2


async def test_a_line_that_is_larger_than_the_room_goes_alone(
    source: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "OPEN_BYTES", 1)
    flow = Questions(source, bytearray(6), PATHS)
    for _ in range(5):
        taken = await asyncio.wait_for(flow.take(), scaled(5))
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
    assert await asyncio.wait_for(waiting, scaled(5)) is None
    assert await flow.take() is None


@dataclass
class Wired:
    """What a run needs of a batch to answer its lines, with an application that answers with the body."""

    batch: Batch
    front: Any = field(default_factory=lambda: SimpleNamespace(admission=SimpleNamespace(cause=None)))

    async def answer(self) -> None:
        try:
            await self.batch._answer_all(self.front, Written(bytearray(6)))
        finally:
            for task in self.batch._background:
                task.cancel()


@pytest.fixture
def wired(source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Wired]:
    async def opened(front: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(run, "opened", opened)
    monkeypatch.setattr(run, "warnings_of", lambda front: [])
    monkeypatch.setattr(run, "batch_paths", lambda app: PATHS)

    def wired(place: str) -> Wired:
        batch = Batch({"max_num_seqs": 2}, None, [])  # type: ignore[arg-type]
        batch._source, batch._output = source, Output(place, None)
        batch._progress, batch._app = Progress(5, 0), Busy(0)  # type: ignore[assignment]
        return Wired(batch)

    return wired


async def test_no_line_is_written_after_one_that_failed(
    wired: Callable[[str], Wired], tmp_path: Path, source: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def failing_once(file: BinaryIO, data: bytes, *words: str) -> None:
        written.append(data)
        if len(written) == 2:
            file.write(data[:60])
            raise exits.Exit(exits.NO_SPACE, "The disk is full.")
        file.write(data)

    monkeypatch.setattr(files, "write", failing_once)
    path = tmp_path / "out"
    with pytest.raises(exits.Exit, match="The disk is full"):
        await wired(str(path)).answer()
    await asyncio.sleep(0)
    assert path.read_bytes() == written[0]


async def test_a_reader_that_takes_nothing_holds_up_the_lines_alone(
    wired: Callable[[str], Wired], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    batch = wired(str(tmp_path / "pipe"))
    reader = batch.batch._output._file.fileno()
    filled = os.write(reader, b"x" * fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ))
    answering = asyncio.create_task(batch.answer())
    await asyncio.wait([answering], timeout=0.2)
    assert not answering.done()
    while filled:
        filled -= len(os.read(reader, filled))
    await asyncio.wait_for(answering, scaled(5))
    assert batch.batch._progress.done == 5
    assert len(os.read(reader, 1 << 16).splitlines()) == 5


async def test_a_second_run_is_refused_while_the_first_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "in", [])
    place, folder = "https://host/out", str(tmp_path / "kept")
    refusals = []

    def deliver(output: Output) -> None:
        try:
            Output(place, folder)
        except exits.Exit as refused:
            refusals.append(refused.message)

    monkeypatch.setattr(Output, "deliver", deliver)
    arguments: Any = {"input_file": str(source), "output_file": place, "output_tmp_dir": folder}
    batch = Batch(arguments, None, [])  # type: ignore[arg-type]
    assert await batch.run() == 0
    (refusal,) = refusals
    assert "is being written by another run" in refusal


def test_a_full_disk_ends_the_run_with_its_code() -> None:
    with pytest.raises(exits.Exit, match="Cannot write /dev/full: No space left") as ended:
        Output("/dev/full", None).append(b"{}\n")
    assert ended.value.exit_code is exits.NO_SPACE
