"""The API's end of the wire: submits requests, hands out their deltas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Literal, Protocol, cast

import msgspec

from slipway.dist.frames import encode_frame, split_frames
from slipway.engine.launch import Parent
from slipway.engine.messages import (
    PROTOCOL_VERSION,
    AbortRequests,
    AdapterRef,
    AddRequest,
    Call,
    Failed,
    FromClient,
    FromEngine,
    Hello,
    LoadAdapter,
    Loading,
    Ready,
    Reply,
    Stats,
    StepDone,
    UnloadAdapter,
)
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.engine.stream import EngineDead, Stream
from slipway.exits import ENGINE_DIED, ExitCode

ONE_TOKEN = ""
"""Id of the request that asks for a step of one token: no other has none."""
State = Literal["loading", "ready", "dead"]
OnStats = Callable[[int, Stats], None]
"""Told of each engine's state by its rank."""

_decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


class _Frames(asyncio.Protocol):
    """The API's end of the socket: tells `connected` of it, hands each message of the engine to `take`, then
    sets `lost`. An engine that is ready says so before the loop tells who connects that it has."""

    def __init__(
        self,
        connected: Callable[[asyncio.WriteTransport], None],
        take: Callable[[FromEngine], None],
        lost: asyncio.Future[None],
    ) -> None:
        self._connected = connected
        self._take = take
        self._lost = lost
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._connected(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            for frame in split_frames(self._received):
                self._take(_decoder.decode(frame))
        except (ValueError, msgspec.DecodeError):
            assert self._transport is not None
            self._transport.close()  # nothing after a broken frame can be trusted

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)


class Client(Protocol):
    """What the API sees of its engine, or of several engines as of one.

    `state` goes from loading to ready to dead, and never back.
    """

    @property
    def state(self) -> State: ...

    @property
    def progress(self) -> Loading | None: ...

    @property
    def ranks(self) -> Sequence[int]:
        """Of the engines, among all that share requests."""

    @property
    def ready(self) -> Ready | None:
        """What all of it can serve, once it does."""

    @property
    def failure(self) -> Failed | None:
        """Why it has ended."""

    @property
    def asleep(self) -> bool:
        """Memory was given back, and requests are refused."""

    @property
    def heartbeat_age(self) -> float:
        """Seconds since an engine that owes something was last heard, the longest; else 0."""

    @property
    def quietest(self) -> str:
        """What the engine is called that has been silent for so long."""

    async def run(self, *, on_stats: OnStats) -> None:
        """Read what is said until it has gone or `close` is called."""

    async def wait_ready(self) -> Ready:
        """Raises EngineDead where the start fails."""

    async def wait_dead(self) -> Failed:
        """The reason of the end, when it has come."""

    def submit(self, request: AddRequest) -> Stream:
        """Raises EngineDead, and FrameTooLarge for a request that cannot be told."""

    def abort(self, request_id: str) -> None:
        """Forget a request; its stream gives nothing more."""

    @property
    def idle_seconds(self) -> float:
        """Since the last step, or the start; of several engines, the longest. 0 where an engine owes one."""

    async def compute_one(self) -> None:
        """Have each engine compute a step of one token, which no metric counts. Raises EngineDead."""

    async def call(self, method: str, *arguments: str, timeout: float | None = None) -> str:
        """Ask an administrative question. Raises TimeoutError after `timeout` seconds."""

    async def load_adapter(self, adapter: AdapterRef, *, timeout: float | None = None) -> str:
        """Have an adapter read: "ok", or what is wrong with it. Raises TimeoutError."""

    async def unload_adapter(self, number: int, *, timeout: float | None = None) -> None:
        """Have it forgotten, behind all requests so far. Raises TimeoutError."""

    def forget_adapter(self, number: int) -> None:
        """The same without waiting for it; nothing where the engine has gone."""

    async def close(self) -> None:
        """Hang up, and end what we started."""


class EngineClient:
    """One API process's connection to one engine core: a `Client`."""

    def __init__(
        self,
        socket_path: str,
        *,
        client_id: int = 0,
        engine: Parent | None = None,
        rank: int = 0,
        name: str = "the engine",
        ended: Callable[[str], None] = lambda request_id: None,
    ) -> None:
        """rank  among engines that share requests

        ended   is told of each request that ends or is aborted while the engine lives
        """
        self.state: State = "loading"
        self.progress: Loading | None = None
        self.ready: Ready | None = None
        self.failure: Failed | None = None
        self.ranks = (rank,)
        self._rank = rank
        self.quietest = name
        self.ended = ended
        self._socket_path = socket_path
        self._client_id = client_id
        self._engine = engine
        self._streams: dict[str, Stream] = {}
        self._calls: dict[int, asyncio.Future[str]] = {}
        self._call_ids = count()
        """Each is used once: the answer to a call that was given up may come late."""
        self._transport: asyncio.WriteTransport | None = None
        self._changed = asyncio.Event()
        self._heard = time.monotonic()
        self._num_steps = 0
        """That the engine has told of."""
        self._stepped = self._heard
        """When it told of the last."""

    @property
    def heartbeat_age(self) -> float:
        if self.state == "ready" and not self._streams:
            return 0.0
        return time.monotonic() - self._heard

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self._streams else time.monotonic() - self._stepped

    async def run(self, *, on_stats: OnStats) -> None:
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[None] = loop.create_future()
        try:
            frames = _Frames(self._greet, partial(self._take, on_stats), lost)
            await loop.create_unix_connection(lambda: frames, self._socket_path)
            await lost
        except OSError:
            pass  # it has gone before we came
        finally:
            if self._transport is not None:
                self._transport.close()
        await self._die()

    async def wait_ready(self) -> Ready:
        while self.state == "loading":
            await self._changed.wait()
        if self.ready is None or self.failure is not None:
            raise EngineDead(self._cause())
        return self.ready

    async def wait_dead(self) -> Failed:
        while self.state != "dead":
            self._changed.clear()
            await self._changed.wait()
        return self._cause()

    def submit(self, request: AddRequest) -> Stream:
        if self.state != "ready":
            raise EngineDead(self._cause())
        if request.request_id in self._streams:
            raise ValueError(f"request id {request.request_id!r} is in use by a running request")
        if not self._streams:
            self._heard = time.monotonic()  # it owed nothing until now
        self._write(request)
        stream = self._streams[request.request_id] = Stream(self._rank)
        return stream

    async def compute_one(self) -> None:
        pools = PoolingParams() if self.ready is not None and self.ready.pools is not None else None
        params = SamplingParams(max_tokens=1, temperature=0.0)
        request = AddRequest(ONE_TOKEN, [0], params, pooling=pools, counted=False)
        async for _ in self.submit(request):
            pass

    def abort(self, request_id: str) -> None:
        if self._streams.pop(request_id, None) is not None and self.state == "ready":
            self.ended(request_id)
            self._write(AbortRequests([request_id]))

    def give_up(self, failure: Failed) -> None:
        """Hang up on an engine that is of no more use, for this reason."""
        self.failure = self.failure or failure
        if self._transport is not None:
            self._transport.close()

    @property
    def asleep(self) -> bool:
        return self.ready is not None and bool(self.ready.asleep)

    async def call(self, method: str, *arguments: str, timeout: float | None = None) -> str:
        return await self._ask(lambda call_id: Call(call_id, method, list(arguments)), timeout)

    async def load_adapter(self, adapter: AdapterRef, *, timeout: float | None = None) -> str:
        return await self._ask(lambda call_id: LoadAdapter(call_id, adapter), timeout)

    async def unload_adapter(self, number: int, *, timeout: float | None = None) -> None:
        await self._ask(lambda call_id: UnloadAdapter(call_id, number), timeout)

    def forget_adapter(self, number: int) -> None:
        if self.state == "ready":
            self._write(UnloadAdapter(next(self._call_ids), number))

    async def _ask(self, message: Callable[[int], FromClient], timeout: float | None) -> str:
        if self.state != "ready":
            raise EngineDead(self._cause())
        call_id = next(self._call_ids)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        self._write(message(call_id))
        try:
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._calls[call_id]

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._engine is not None:
            # One that loads has nothing to finish, and looks at its pipe only between tensors.
            await asyncio.to_thread(self._engine.stop, 5 if self.ready is not None else 0)

    def _greet(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        if self.failure is not None:  # it was given up before
            transport.close()
        self._write(Hello(PROTOCOL_VERSION, self._client_id))

    def _write(self, message: FromClient) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():  # else `_die` tells all who wait, once it knows why
            self._transport.write(encode_frame(message))

    def _take(self, on_stats: OnStats, message: FromEngine) -> None:
        self._heard = time.monotonic()
        match message:
            case StepDone(deltas, stats):
                if stats.step != self._num_steps:
                    self._num_steps, self._stepped = stats.step, self._heard
                for delta in deltas:
                    ended = delta.finish_reason is not None
                    take = self._streams.pop if ended else self._streams.get
                    stream = take(delta.request_id, None)
                    if stream is not None:  # else aborted while the delta was on its way
                        stream.put(delta)
                        if ended:
                            self.ended(delta.request_id)
                on_stats(self._rank, stats)
            case Loading():
                self.progress = message
            case Ready():
                self.ready, self._stepped = message, self._heard
                self._become("ready")
            case Failed():
                self.failure = message
            case Reply(call_id, result):
                future = self._calls.get(call_id)
                if future is not None and not future.done():  # else its caller has gone
                    future.set_result(result)

    def _become(self, state: Literal["ready", "dead"]) -> None:
        self.state = state
        self._changed.set()

    async def _die(self) -> None:
        if self.failure is None and self._engine is not None:
            self.failure = _died(*await asyncio.to_thread(self._engine.post_mortem))
        self._become("dead")
        dead = EngineDead(self._cause())
        for stream in self._streams.values():
            stream.fail(dead)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(dead)
        self._streams.clear()

    def _cause(self) -> Failed:
        if self.failure is not None:
            return self.failure
        if self.state == "loading":
            return Failed(0, "Loading", "the model is still loading")
        return _died(ENGINE_DIED.message, ENGINE_DIED)


def _died(message: str, cause: ExitCode) -> Failed:
    return Failed(cause.code, cause.reason, message, cause.hint)
