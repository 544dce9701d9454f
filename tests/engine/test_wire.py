"""API and engine over the real socket; the model is replaced by known tokens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from e2e.ground.patience import scaled
from hypothesis import given
from hypothesis import strategies as st

from local_engine import LocalEngine, LocalHub
from slipway.dist import frames
from slipway.dist.frames import FrameTooLarge, encode_frame, split_frames
from slipway.engine.client import EngineClient
from slipway.engine.core import EngineCore
from slipway.engine.executor import QUIET_SECONDS, Executor, NullWorker
from slipway.engine.kv_cache import KVCache, block_hash
from slipway.engine.messages import (
    PROTOCOL_VERSION,
    AddRequest,
    Call,
    Delta,
    Failed,
    FromEngine,
    Hello,
    Ready,
    Reply,
    Stats,
    TokenLogprobs,
)
from slipway.engine.page_pool import PagePool
from slipway.engine.params import SamplingParams
from slipway.engine.scheduler import Scheduler, SchedulerLimits
from slipway.engine.stream import EngineDead, Stream, merge
from slipway.engine.wire import Hub, Inbound
from slipway.exits import WORKER_KILLED, ExitCode
from slipway.model.kv import KVGroup


@asynccontextmanager
async def engine(
    folder: Path, clients: int = 1, told: Callable[[Stats], None] | None = None
) -> AsyncIterator[tuple[EngineCore, list[EngineClient]]]:
    """A core over known tokens in a thread, and its connected clients, who hand their Stats to `told`."""
    path = str(folder / "engine.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    parent, alive = os.pipe()
    hub = Hub(listener, parent)
    hub.broadcast(Ready(1000, 1000, 64, 4, "float32", "Null", {}))
    cache = KVCache(PagePool(256), [KVGroup(4)], prefix_caching=True, hash_block=block_hash("sha256"))
    core = EngineCore(Scheduler(cache, SchedulerLimits(64, 16)), Executor(NullWorker(16)), hub)
    thread = threading.Thread(target=core.run, daemon=True)
    thread.start()
    connected = [EngineClient(path, client_id=i) for i in range(clients)]

    def on_stats(rank: int, stats: Stats) -> None:
        if told is not None:
            told(stats)

    tasks = [asyncio.create_task(client.run(on_stats=on_stats)) for client in connected]
    try:
        for client in connected:
            await asyncio.wait_for(client.wait_ready(), scaled(5))
        yield core, connected
    finally:
        for client in connected:
            await client.close()
        os.close(alive)
        await asyncio.to_thread(thread.join, 5)
        await asyncio.gather(*tasks)
        hub.close()
        os.close(parent)


async def collect(stream: Stream) -> list[int]:
    return [token async for delta in stream for token in delta.token_ids]


def ask(name: str, prompt: int, max_tokens: int, seed: int = 0) -> AddRequest:
    return AddRequest(name, list(range(prompt)), SamplingParams(max_tokens, seed=seed))


async def test_two_clients_use_the_same_request_ids_and_get_their_own_tokens(tmp_path: Path):
    async with engine(tmp_path, clients=2) as (_, (one, two)):
        streams = one.submit(ask("x", 5, 8, seed=100)), two.submit(ask("x", 5, 8, seed=500))
        tokens = await asyncio.gather(*map(collect, streams))
        assert tokens == [[105 + i for i in range(8)], [505 + i for i in range(8)]]


async def test_what_is_counted_is_told_to_one_client_alone(tmp_path: Path):
    told: list[Stats] = []
    async with engine(tmp_path, clients=2, told=told.append) as (core, clients):
        for round in range(3):
            await asyncio.gather(*(collect(client.submit(ask(f"{round}", 5, 8))) for client in clients))
        steps = core.news.num_steps
        while max(stats.step for stats in told) < steps:
            await clients[0].call("check")
    assert sum(len(stats.step_seconds) for stats in told) == steps
    assert sum(sum(stats.num_step_tokens) for stats in told) == 2 * 3 * (5 + 7) - (
        sum(stats.prefix_hits for stats in told)
    )
    assert sum(stats.prefix_queries for stats in told) == 2 * 3 * 5


async def test_requests_of_a_client_that_hangs_up_are_aborted(tmp_path: Path):
    async with engine(tmp_path, clients=2) as (core, (one, two)):
        one.submit(ask("gone", 5, 900))
        await one.close()
        assert await collect(two.submit(ask("x", 5, 3))) == [5, 6, 7]
        while core.scheduler.has_work:
            assert await two.call("check") == "ok"


async def test_an_aborted_request_leaves_no_page_behind(tmp_path: Path):
    async with engine(tmp_path) as (_, (client,)):
        stream = client.submit(ask("a", 5, 900))
        await anext(stream)
        client.abort("a")
        assert not client._streams
        assert await client.call("check") == "ok"


async def test_a_request_id_in_use_is_refused(tmp_path: Path):
    async with engine(tmp_path) as (_, (client,)):
        client.submit(ask("a", 5, 900))
        with pytest.raises(ValueError, match="in use by a running request"):
            client.submit(ask("a", 5, 2))


async def test_open_streams_raise_when_the_engine_goes(tmp_path: Path):
    path = str(tmp_path / "engine.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    hub = Hub(listener)
    hub.broadcast(Ready(1000, 1000, 64, 4, "float32", "Null", {}))
    client = EngineClient(path)
    task = asyncio.create_task(client.run(on_stats=lambda rank, stats: None))
    await asyncio.to_thread(hub.poll, 5)
    await asyncio.wait_for(client.wait_ready(), scaled(5))
    stream = client.submit(ask("a", 5, 9))
    hub.close()
    with pytest.raises(EngineDead, match="without saying why"):
        await anext(stream)
    await task
    assert client.state == "dead"
    with pytest.raises(EngineDead):
        client.submit(ask("b", 5, 9))


@asynccontextmanager
async def asked(folder: Path) -> AsyncIterator[tuple[EngineClient, Hub, asyncio.Task[None]]]:
    """A client that is ready, the engine's end of its wire, and what reads for the client."""
    path = str(folder / "engine.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    hub = Hub(listener)
    hub.broadcast(Ready(1000, 1000, 64, 4, "float32", "Null", {}))
    client = EngineClient(path, client_id=7)
    reading = asyncio.create_task(client.run(on_stats=lambda rank, stats: None))
    try:
        await asyncio.to_thread(hub.poll, 5)
        await asyncio.wait_for(client.wait_ready(), scaled(5))
        yield client, hub, reading
    finally:
        hub.close()
        await reading


async def heard(hub: Hub) -> Call:
    """The next call that comes to the engine."""
    async with asyncio.timeout(scaled(5)):
        while True:
            for inbound in await asyncio.to_thread(hub.poll, 0.1):
                if isinstance(inbound.message, Call):
                    return inbound.message


async def test_an_answer_that_comes_late_is_not_for_the_next_caller(tmp_path: Path):
    async with asked(tmp_path) as (client, hub, _):
        with pytest.raises(TimeoutError):
            await client.call("start_profile", timeout=0.01)
        late = await heard(hub)
        calling = asyncio.create_task(client.call("check"))
        call = await heard(hub)
        hub.send(7, Reply(late.call_id, "too late"))
        hub.send(7, Reply(call.call_id, "ok"))
        assert await asyncio.wait_for(calling, scaled(5)) == "ok"


async def test_an_answer_to_a_caller_who_leaves_as_it_comes_hurts_nobody(tmp_path: Path):
    async with asked(tmp_path) as (client, hub, reading):
        calling = asyncio.create_task(client.call("check"))
        call = await heard(hub)
        (future,) = client._calls.values()
        future.cancel()  # its caller is told in a later turn of the loop
        client._take(lambda stats: None, Reply(call.call_id, "ok"))
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert not reading.done()


class KilledEngine:
    """Its end has been seen; why it came is not known yet."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.known = threading.Event()

    def post_mortem(self) -> tuple[str, ExitCode]:
        self.asked.set()
        self.known.wait(scaled(5))
        return "It was killed.", WORKER_KILLED


def test_a_request_that_comes_before_the_cause_of_the_end_is_told_the_cause(tmp_path: Path):
    async def scenario() -> None:
        path = str(tmp_path / "engine.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        hub = Hub(listener)
        hub.broadcast(Ready(1000, 1000, 64, 4, "float32", "Null", {}))
        killed = KilledEngine()
        client = EngineClient(path, engine=killed)
        task = asyncio.create_task(client.run(on_stats=lambda rank, stats: None))
        await asyncio.to_thread(hub.poll, 5)
        await asyncio.wait_for(client.wait_ready(), scaled(5))
        hub.close()
        await asyncio.to_thread(killed.asked.wait, 5)
        late = client.submit(ask("late", 5, 9))
        killed.known.set()
        with pytest.raises(EngineDead, match="It was killed"):
            await anext(late)
        await task

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # whose closed transports raise
        runner.run(scenario())


async def test_a_reader_that_never_comes_costs_one_pending_delta(tmp_path: Path):
    async with engine(tmp_path) as (_, (client,)):
        slow = client.submit(ask("slow", 5, 600))
        assert len(await collect(client.submit(ask("fast", 5, 700)))) == 700
        deltas = [delta async for delta in slow]
        assert len(deltas) == 1
        assert len(deltas[0].token_ids) == 600


def test_a_client_that_greets_late_has_read_the_cause_and_meets_no_closed_socket(tmp_path: Path) -> None:
    """An engine that fails at once is connected to, and answers, before the API's loop has greeted it."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        hub = Hub(listener)
        hub.broadcast(Failed(14, "UnsupportedModel", "too long", "", None))
        thread = threading.Thread(target=lambda: (hub.wait_flushed(10), hub.close()))
        thread.start()
        client.connect(str(tmp_path / "engine.sock"))
        received = bytearray()
        while chunk := client.recv(1 << 16):
            received += chunk
        assert b"UnsupportedModel" in received
        client.sendall(encode_frame(Hello(PROTOCOL_VERSION, 0)))
        client.shutdown(socket.SHUT_WR)
        thread.join(scaled(10))
        assert not thread.is_alive()


def test_a_client_whom_nobody_has_met_yet_reads_the_cause_too(tmp_path: Path) -> None:
    """The engine meets who has come only between steps: some come while it fails."""
    path = str(tmp_path / "engine.sock")
    with contextlib.ExitStack() as stack:
        listener, *clients = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(4))
        listener.bind(path)
        listener.listen()
        hub = Hub(listener)
        clients[0].connect(path)
        hub.poll(0)
        for late in clients[1:]:
            late.connect(path)
        hub.broadcast(Failed(14, "UnsupportedModel", "too long", "", None))
        thread = threading.Thread(target=lambda: (hub.wait_flushed(10), hub.close()))
        thread.start()
        for client in clients:
            with client.makefile("rb") as told:
                assert b"UnsupportedModel" in told.read()
            client.close()
        thread.join(scaled(10))
        assert not thread.is_alive()
        with socket.socket(socket.AF_UNIX) as refused, pytest.raises(ConnectionRefusedError):
            refused.connect(path)


def test_merged_deltas_are_the_sum_of_their_parts():
    first = Delta("a", [1], logprobs=[TokenLogprobs(-1.0, 1, [])], num_cached_tokens=7)
    last = Delta("a", [2], "stop", stop_token_id=2, logprobs=[TokenLogprobs(-2.0, 1, [])])
    merge(first, last)
    assert (first.token_ids, first.finish_reason, first.stop_token_id) == ([1, 2], "stop", 2)
    assert first.num_cached_tokens == 7
    assert [entry.logprob for entry in first.logprobs or ()] == [-1.0, -2.0]


def test_merging_copies_nothing_that_is_there():
    first = Delta("a", [1], logprobs=[TokenLogprobs(-1.0, 1, [])])
    token_ids, logprobs = first.token_ids, first.logprobs
    merge(first, Delta("a", [2], logprobs=[TokenLogprobs(-2.0, 1, [])]))
    assert first.token_ids is token_ids
    assert first.logprobs is logprobs


@given(bodies=st.lists(st.binary(max_size=40), max_size=6), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_frames_come_out_whole_however_the_bytes_arrive(bodies: list[bytes], cuts: list[int]):
    stream = b"".join(len(body).to_bytes(4) + body for body in bodies)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    buffer, frames = bytearray(), []
    for start, end in itertools.pairwise(edges):
        buffer += stream[start:end]
        frames += split_frames(buffer)
    assert frames == bodies
    assert not buffer


def test_an_impossible_frame_length_is_refused():
    with pytest.raises(ValueError, match="over the limit"):
        list(split_frames(bytearray(b"\xff\xff\xff\xff")))


async def test_a_request_too_large_for_a_frame_is_refused_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with engine(tmp_path) as (_, (client,)):
        monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
        stream = client.submit(ask("x", 5, 8))
        with pytest.raises(FrameTooLarge, match="over the limit of 1000"):
            client.submit(ask("large", 1000, 8))
        assert await collect(stream) == [5 + i for i in range(8)]
        assert await collect(client.submit(ask("large", 5, 3))) == [5, 6, 7]


def test_news_too_large_for_a_frame_end_their_request_alone(
    tiny_models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    class WireHub(LocalHub):
        """With the limits of the real one."""

        def send(self, client_id: int, message: FromEngine) -> None:
            encode_frame(message)
            super().send(client_id, message)

    with LocalEngine(tiny_models("llama")) as engine:
        engine.hub = engine.core.hub = engine.core.news._hub = WireHub()  # type: ignore[assignment]
        monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 3000)
        large = engine.add([*range(5, 60)], SamplingParams(4, num_prompt_logprobs=5))
        small = [engine.add([*range(5, 25)], SamplingParams(4, num_prompt_logprobs=5)) for _ in range(2)]
        engine.finish()
        (end,) = engine.hub.deltas[large]
        assert end.unfit
        assert "over the limit of 3000" in end.error
        for name in small:
            output = engine.output(name)
            assert (len(output.tokens), len(output.prompt_logprobs)) == (4, 20)
        assert sum(sum(stats.num_step_tokens) for stats in engine.hub.stats) == 55 + 2 * 20 + 2 * 3


def test_a_stream_of_garbage_drops_that_client_and_no_other(tmp_path: Path):
    path = str(tmp_path / "engine.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    hub = Hub(listener)
    with socket.socket(socket.AF_UNIX) as bad:
        bad.connect(path)
        bad.sendall(b"\xff" * 64)
        hub.poll(5)
        hub.poll(5)
        assert bad.recv(10) == b""
    hub.close()


def test_stats_keep_their_defaults_apart():
    one, two = Stats(0, 0, 0.0, 1), Stats(0, 0, 0.0, 1)
    one.num_step_tokens.append(1)
    assert two.num_step_tokens == []


def test_idle_work_is_done_only_while_nothing_runs(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        path = str(tmp_path / "engine.sock")
        listener.bind(path)
        listener.listen()
        calls: list[int] = []
        cache = KVCache(PagePool(256), [KVGroup(4)], prefix_caching=True, hash_block=block_hash("builtin"))
        scheduler = Scheduler(cache, SchedulerLimits(64, 16))
        hub = Hub(listener)
        core = EngineCore(scheduler, Executor(NullWorker(16)), hub, lambda: bool(calls.append(1)))
        core.run_once()
        assert len(calls) == 1
        client.connect(path)
        client.sendall(encode_frame(Hello(PROTOCOL_VERSION, 0)))
        client.sendall(encode_frame(AddRequest("a", [1, 2, 3], SamplingParams(5))))
        while not scheduler.running:
            core.run_once()
        before = len(calls)
        while scheduler.has_work:
            core.run_once()
        core.run_once()
        client.sendall(encode_frame(AddRequest("b", [1, 2, 3], SamplingParams(5))))
        while not scheduler.running:
            core.run_once(timeout=QUIET_SECONDS)
        assert len(calls) == before  # nothing ran for a moment alone
        while scheduler.has_work:
            core.run_once()
        core.run_once(timeout=QUIET_SECONDS)
        while len(calls) == before:
            core.run_once(timeout=QUIET_SECONDS)
        assert len(calls) == before + 1
        hub.close()


def test_a_wake_ends_the_wait_for_idle_work_and_is_looked_into_first(tmp_path: Path) -> None:
    """Else what was prepared meanwhile would wait for the next message."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        calls: list[int] = []
        cache = KVCache(PagePool(256), [KVGroup(4)], prefix_caching=True, hash_block=block_hash("builtin"))
        hub = Woken(listener)
        scheduler = Scheduler(cache, SchedulerLimits(64, 16))
        core = EngineCore(scheduler, Executor(NullWorker(16)), hub, lambda: bool(calls.append(1)))
        core._collected = time.monotonic() + scaled(60)  # a step that ends in a minute
        core.run_once(timeout=None)
        assert calls == []
        hub.close()


class Woken(Hub):
    """Something is prepared whenever it begins to wait."""

    def poll(self, timeout: float | None) -> list[Inbound]:
        if timeout != 0:
            self.wake()
        return super().poll(timeout)
