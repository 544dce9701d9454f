"""Several engines as one client sees them, over the real wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from e2e.ground.patience import scaled
from scripted import ScriptedEngine

from slipway.engine.balanced import BalancedClient, connect, least, summed, together
from slipway.engine.client import Client, EngineClient
from slipway.engine.launch import Address
from slipway.engine.messages import PARTS, AdapterRef, AddRequest, Failed, Loading, Ready, Stats
from slipway.engine.params import SamplingParams
from slipway.engine.stream import EngineDead
from slipway.exits import ENGINE_DIED, ExitCode

PROMPT = list(range(100, 164))
ADAPTER = AdapterRef(3, "three", "/three")


def ask(name: str, prompt: list[int] | None = None, max_tokens: int = 3) -> AddRequest:
    return AddRequest(name, prompt or PROMPT, SamplingParams(max_tokens))


class Somebody:
    """Knows of an end that its engine did not explain."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def post_mortem(self) -> tuple[str, ExitCode]:
        return f"The process of engine {self._rank} of 2 was killed.", ENGINE_DIED

    def stop(self, patience: float) -> None:
        """It is the test's to end."""


@asynccontextmanager
async def two(
    folder: Path, *, loaded: bool = True, told: list[tuple[int, Stats]] | None = None
) -> AsyncIterator[tuple[Client, list[ScriptedEngine]]]:
    """Both answer each request with their own rank."""
    engines, addresses = [], []
    for rank in (0, 1):
        (place := folder / str(rank)).mkdir()
        engines.append(ScriptedEngine(place, lambda request, rank=rank: [rank] * 400))
        addresses.append(Address(engines[rank].socket_path, rank, f"engine {rank} of 2"))
    client = connect(addresses, map(Somebody, (0, 1)))
    heard = told if told is not None else []
    task = asyncio.create_task(client.run(on_stats=lambda rank, stats: heard.append((rank, stats))))
    try:
        if loaded:
            for engine in engines:
                engine.finish_loading()
            await asyncio.wait_for(client.wait_ready(), scaled(5))
        yield client, engines
    finally:
        await client.close()
        await asyncio.wait_for(task, scaled(5))
        for engine in engines:
            engine.die()


async def tokens(client: Client, request: AddRequest) -> list[int]:
    return [token async for delta in client.submit(request) for token in delta.token_ids]


def test_one_engine_is_asked_without_a_balance():
    assert isinstance(connect([Address("nowhere")], [Somebody(0)]), EngineClient)


async def test_requests_go_to_both_and_come_back_to_what_they_began_with(tmp_path: Path):
    told: list[tuple[int, Stats]] = []
    async with two(tmp_path, told=told) as (client, engines):
        assert await tokens(client, ask("a")) == [0, 0, 0]
        assert await tokens(client, ask("b", [7] * 64)) == [1, 1, 1]
        for n in range(3):
            assert await tokens(client, ask(f"c{n}", [*PROMPT, n])) == [0, 0, 0]
            assert await tokens(client, ask(f"d{n}", [*[7] * 64, n])) == [1, 1, 1]
        assert [len(engine.requests) for engine in engines] == [4, 4]
        assert {rank for rank, _ in told} == {0, 1}
        assert client.submit(ask("e")).engine == 0


async def test_an_end_and_an_abort_make_room(tmp_path: Path):
    async with two(tmp_path) as (client, engines):
        assert isinstance(client, BalancedClient)
        for engine in engines:
            engine.gate.clear()
        for n in range(4):
            client.submit(ask(str(n), [n] * 64))
        client.abort("0")
        client.abort("0")
        client.abort("never there")
        await asyncio.to_thread(engines[0].wait, lambda: engines[0].aborted == ["0"])
        with pytest.raises(ValueError, match="'2' is in use"):
            client.submit(ask("2"))
        assert client.submit(ask("4", [9] * 64)).engine == 0
        for engine in engines:
            engine.gate.set()
        assert await tokens(client, ask("5", [8] * 64)) in ([0] * 3, [1] * 3)
        for n in (0, 1):
            assert await tokens(client, ask(f"after {n}", [n] * 64)) == [n] * 3


async def test_it_is_ready_when_all_are(tmp_path: Path):
    async with two(tmp_path, loaded=False) as (client, engines):
        waiting = asyncio.create_task(client.wait_ready())
        engines[1].finish_loading()
        while client.progress is None:
            await asyncio.sleep(0.01)
        assert client.state == "loading"
        assert client.ready is None
        assert (client.progress.done, client.progress.total) == (6, 14)
        with pytest.raises(EngineDead, match="still loading"):
            client.submit(ask("early"))
        engines[0].finish_loading()
        assert (await asyncio.wait_for(waiting, scaled(5))).max_model_len == 512
        assert client.state == "ready"


@pytest.mark.parametrize("failure", [None, Failed(3, "R", "Engine 1 of 2: no memory")])
async def test_one_that_dies_takes_the_others_with_it_and_all_are_told_its_cause(
    tmp_path: Path, failure: Failed | None
):
    async with two(tmp_path) as (client, engines):
        for engine in engines:
            engine.gate.clear()
        streams = [client.submit(ask(str(n), [n] * 64)) for n in range(2)]
        assert {stream.engine for stream in streams} == {0, 1}
        dying = asyncio.create_task(client.wait_dead())
        await asyncio.sleep(0)
        await asyncio.to_thread(engines[1].die, failure)
        cause = (await asyncio.wait_for(dying, scaled(5))).message
        assert cause == (failure.message if failure else "The process of engine 1 of 2 was killed.")
        for stream in streams:
            with pytest.raises(EngineDead, match="ngine 1 of 2"):
                await asyncio.wait_for(anext(stream), scaled(5))
        with pytest.raises(EngineDead, match="ngine 1 of 2"):
            client.submit(ask("late"))
        assert client.state == "dead"
        assert client.failure is not None


async def test_calls_go_to_all_and_one_refusal_is_the_answer(tmp_path: Path):
    async with two(tmp_path) as (client, engines):
        assert await client.call("reset_prefix_cache", "3") == "ok"
        assert [engine.asked for engine in engines] == [[["reset_prefix_cache", "3"]]] * 2
        engines[1].replies["start_profile"] = "failed: no room"
        assert await client.call("start_profile") == "failed: engine 1 of 2: no room"


async def test_prefixes_that_were_reset_draw_no_request(tmp_path: Path):
    async with two(tmp_path) as (client, _):
        assert await tokens(client, ask("a")) == [0] * 3
        assert await tokens(client, ask("b")) == [0] * 3
        await client.call("reset_prefix_cache")
        assert await tokens(client, ask("c")) == [1] * 3


async def test_where_one_cannot_sleep_all_wake(tmp_path: Path):
    async with two(tmp_path) as (client, engines):
        engines[0].replies["sleep"] = "1 request is live."
        assert await client.call("sleep", "1") == "Engine 0 of 2: 1 request is live."
        assert engines[0].calls == ["sleep"]
        assert engines[1].asked == [["sleep", "1"], ["wake_up", *PARTS]]


async def test_an_adapter_is_in_all_engines_or_in_none(tmp_path: Path):
    async with two(tmp_path) as (client, engines):
        assert await client.load_adapter(ADAPTER) == "ok"
        assert [list(engine.adapters) for engine in engines] == [[3], [3]]
        engines[1].replies["bad"] = "it has no weights"
        assert await client.load_adapter(AdapterRef(4, "bad", "/bad")) == "it has no weights"
        await client.unload_adapter(3)
        assert [list(engine.adapters) for engine in engines] == [[], []]


def test_progress_is_that_of_the_last_phase_that_an_engine_is_in():
    assert summed([None, Loading("load", 1, 2)]) is None
    assert summed([Loading("load", 1, 4), Loading("load", 2, 4)]) == Loading("load", 3, 8)
    assert summed([Loading("load", 1, 4), Loading("warmup", 0, 1)]) == Loading("load", 5, 8)
    assert summed([Loading("warmup", 0, 1), Loading("warmup", 1, 1)]) == Loading("warmup", 1, 2)


def test_all_serve_what_the_least_can():
    one = Ready(100, 5, 64, 16, "float32", "A", {"load": 2.0}, ["w"], (), max_stretched_len=300)
    other = Ready(
        80, 5, 70, 16, "float32", "A", {"load": 3.0}, ["w", "v"], ("weights",), max_stretched_len=400
    )
    expected = Ready(
        80, 5, 64, 16, "float32", "A", {"load": 3.0}, ["w", "v"], ("weights",), max_stretched_len=300
    )
    assert least([one, other]) == expected


def test_answers_of_all_stand_side_by_side():
    assert together([("a", "ok"), ("b", "ok")]) == "ok"
    assert together([("a", "ok /1"), ("b", "ok /2")]) == "ok /1, /2"
