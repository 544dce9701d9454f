"""The API's end of the wire: submits requests, hands out their deltas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Literal, cast

import msgspec

from slipway.dist.frames import encode_frame, split_frames
from slipway.engine.launch import Parent
from slipway.engine.messages import (
    PROTOCOL_VERSION,
    AbortRequests,
    AdapterRef,
    AddRequest,
    Call,
    Delta,
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
from slipway.exits import ENGINE_DIED, ExitCode

_decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


class EngineDead(Exception):
    """The engine has gone; `failure` says why."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Stream:
    """The deltas of one request. At most one is pending: newer tokens merge into it.

    A reader that is slow, or never comes, costs the memory of its own output and no more.
    """

    def __init__(self) -> None:
        self._pending: Delta | None = None
        self._dead: EngineDead | None = None
        self._ended = False
        self._news = asyncio.Event()

    def put(self, delta: Delta) -> None:
        if self._pending is None:
            self._pending = delta
        else:
            merge(self._pending, delta)
        self._news.set()

    def fail(self, dead: EngineDead) -> None:
        self._dead = dead
        self._news.set()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        """The news since the last call. Raises EngineDead where no end can come any more."""
        if self._ended:
            raise StopAsyncIteration
        await self._news.wait()
        self._news.clear()
        delta, self._pending = self._pending, None
        if delta is None:
            assert self._dead is not None
            raise self._dead
        if self._dead is not None:
            self._news.set()
        self._ended = delta.finish_reason is not None
        return delta


def merge(earlier: Delta, later: Delta) -> None:
    """Make of `earlier` both, of one request and in this order; takes as long as `later` is."""
    earlier.token_ids += later.token_ids
    if later.logprobs is not None:
        earlier.logprobs = earlier.logprobs or []
        earlier.logprobs += later.logprobs
    earlier.prompt_logprobs = earlier.prompt_logprobs or later.prompt_logprobs
    earlier.num_cached_tokens = earlier.num_cached_tokens or later.num_cached_tokens
    earlier.timing = later.timing or earlier.timing
    earlier.work = later.work or earlier.work
    earlier.finish_reason, earlier.stop_token_id = later.finish_reason, later.stop_token_id
    earlier.pooled = later.pooled or earlier.pooled
    earlier.error, earlier.unfit = later.error, later.unfit


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


class EngineClient:
    """One API process's connection to one engine core.

    `state` goes from loading to ready to dead, and never back.
    """

    def __init__(self, socket_path: str, *, client_id: int = 0, engine: Parent | None = None) -> None:
        self.state: Literal["loading", "ready", "dead"] = "loading"
        self.progress: Loading | None = None
        self.ready: Ready | None = None
        self.failure: Failed | None = None
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

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the engine was last heard while it owes something, else 0."""
        if self.state == "ready" and not self._streams:
            return 0.0
        return time.monotonic() - self._heard

    async def run(self, *, on_stats: Callable[[Stats], None]) -> None:
        """Read what the engine says until it has gone or `close` is called."""
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
        """Raises EngineDead where the engine fails to start."""
        while self.state == "loading":
            await self._changed.wait()
        if self.ready is None or self.failure is not None:
            raise EngineDead(self._cause())
        return self.ready

    async def wait_dead(self) -> Failed:
        """The reason of the end, when it has come."""
        while self.state != "dead":
            self._changed.clear()
            await self._changed.wait()
        return self._cause()

    def submit(self, request: AddRequest) -> Stream:
        """Raises EngineDead, and FrameTooLarge for a request that cannot be told."""
        if self.state != "ready":
            raise EngineDead(self._cause())
        if request.request_id in self._streams:
            raise ValueError(f"request id {request.request_id!r} is in use by a running request")
        if not self._streams:
            self._heard = time.monotonic()  # it owed nothing until now
        self._write(request)
        stream = self._streams[request.request_id] = Stream()
        return stream

    def abort(self, request_id: str) -> None:
        """Forget a request; its stream gives nothing more."""
        if self._streams.pop(request_id, None) is not None and self.state == "ready":
            self._write(AbortRequests([request_id]))

    @property
    def asleep(self) -> bool:
        """The engine has given memory back, and refuses requests."""
        return self.ready is not None and bool(self.ready.asleep)

    async def call(self, method: str, *arguments: str, timeout: float | None = None) -> str:
        """Ask an administrative question. Raises TimeoutError after `timeout` seconds."""
        return await self._ask(lambda call_id: Call(call_id, method, list(arguments)), timeout)

    async def load_adapter(self, adapter: AdapterRef, *, timeout: float | None = None) -> str:
        """Have an adapter read: "ok", or what is wrong with it. Raises TimeoutError."""
        return await self._ask(lambda call_id: LoadAdapter(call_id, adapter), timeout)

    async def unload_adapter(self, number: int, *, timeout: float | None = None) -> None:
        """Have it forgotten, behind all requests so far. Raises TimeoutError."""
        await self._ask(lambda call_id: UnloadAdapter(call_id, number), timeout)

    def forget_adapter(self, number: int) -> None:
        """The same without waiting for it; nothing where the engine has gone."""
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
            return await asyncio.wait_for(future, timeout)
        finally:
            del self._calls[call_id]

    async def close(self) -> None:
        """Hang up and end the engine if we started it."""
        if self._transport is not None:
            self._transport.close()
        if self._engine is not None:
            # One that loads has nothing to finish, and looks at its pipe only between tensors.
            await asyncio.to_thread(self._engine.stop, 5 if self.ready is not None else 0)

    def _greet(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._write(Hello(PROTOCOL_VERSION, self._client_id))

    def _write(self, message: FromClient) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():  # else `_die` tells all who wait, once it knows why
            self._transport.write(encode_frame(message))

    def _take(self, on_stats: Callable[[Stats], None], message: FromEngine) -> None:
        self._heard = time.monotonic()
        match message:
            case StepDone(deltas, stats):
                for delta in deltas:
                    ended = delta.finish_reason is not None
                    take = self._streams.pop if ended else self._streams.get
                    stream = take(delta.request_id, None)
                    if stream is not None:  # else aborted while the delta was on its way
                        stream.put(delta)
                on_stats(stats)
            case Loading():
                self.progress = message
            case Ready():
                self.ready = message
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
