"""Connections that clients keep for their next request, and how they end without losing one.

HTTP/1.1 has no word to a client at rest that its connection is about to close: a request that is on its way
then meets a closed socket, and a POST is not sent again. So an answer says `Connection: close` where the
server knows it (`api.edge`), and a connection that was never told is closed only when no request can come.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from slipway.api.errors import ApiError, error_response
from slipway.api.listen import BACKLOG

KEEP_ALIVE_SECONDS = 620
"""Longer than what clients and balancers keep idle connections, such as Go's client (90 s) and Google's
balancers (600 s): they close first, and no request is sent into a closing connection."""
LINGER_SECONDS = 6.0
"""The same for a server that ends, where only the usual can be waited for: `httpx`, and OpenAI's client with
it, give up a connection that was idle for 5 s."""
_LOOK_SECONDS = 0.02
_SWEEP_TICKS = 10
"""Of uvicorn, 0.1 s each: how often connections are looked at for what has taken too long."""
_MOST_LOOKED_AT = 16
"""Of those at rest, for one that may be closed."""
_MOST_REFUSED = 128
"""Connections over the limit that are told so at any time; more are closed without a word."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may send, how long it may take for it, and how many there may be."""

    url_bytes: int = 16 << 10
    head_bytes: int = 64 << 10
    """Of the request line and all headers; of a chunked body's trailers as well."""
    headers: int = 256
    pipelined: int = 16
    """Requests that wait on one connection for the answers before theirs."""
    head_seconds: float = 20.0
    """From the first byte of a request to the end of its headers."""
    body_seconds: float = 30.0
    """Between two pieces of a body."""
    body_rate: int = 1 << 10
    """Bytes a second that a body has on the average, after its first `body_seconds`."""
    linger_seconds: float = 5.0
    """In which what a refused client still sends is thrown away: closing at once would reset the connection,
    and the reason be lost."""
    connections: int = 8192
    """Of which each counts from its accept on: one whose TLS handshake has yet to come is at rest."""
    handshake_seconds: float = 10.0
    """From the accept to the end of a TLS handshake."""


class Connections(ServerState):
    """All of one server's."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.at_rest: dict[Connection, None] = {}
        """Those without a request, the longest at rest first."""
        self.handshakes: dict[Connection, Callable[[], object]] = {}
        """Those whose TLS handshake is under way, the oldest first, and what ends each."""

    @property
    def num_accepted(self) -> int:
        return len(self.connections) + len(self.handshakes)

    def expect(self, connection: Connection, end: Callable[[], object]) -> None:
        """Count one that begins its TLS handshake, which `end` breaks off, until `admit` or `forget`."""
        if self.num_accepted >= self.limits.connections:
            self._make_room()  # else the new one is turned away once it can be told so
        self.handshakes[connection] = end

    def forget(self, connection: Connection) -> None:
        """Its handshake has failed, or has ended long ago."""
        self.handshakes.pop(connection, None)

    def admit(self, connection: Connection) -> None:
        """Take one more; over the limit one at rest gives way, else the new one is turned away."""
        self.forget(connection)
        excess = len(self.connections) - self.limits.connections
        if excess <= 0 or self._make_room():
            self.at_rest[connection] = None
        elif excess <= _MOST_REFUSED:
            connection.refuse(_too_many(self.limits.connections))
        else:
            connection.transport.abort()

    def _make_room(self) -> bool:
        """Close the one that is longest at rest or in its handshake, where there is one."""
        beginner = next(iter(self.handshakes), None)
        for resting in [*islice(self.at_rest, _MOST_LOOKED_AT)]:
            if beginner is not None and beginner.moved < resting.moved:
                break
            if resting.close_at_rest(0.0):
                if resting.scheme == "https":  # else it stays until its peer says farewell, too
                    resting.transport.abort()
                return True
        if beginner is None:
            return False
        self.handshakes.pop(beginner)()
        return True


class UntilClosed(RequestResponseCycle):
    """An answer to a client of HTTP/1.0, which reads no chunks. Without a length it ends by closing."""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._is_bounded = b"content-length" in names
            if not self._is_bounded:
                self.chunked_encoding = False
        elif not self._is_bounded:
            await self.flow.drain()  # first, as a ping may be sent beside a piece
            self.expected_content_length = len(message.get("body", b""))  # of this piece
        await super().send(message)


class Connection(HttpToolsProtocol):
    """One client's: bounded in what it sends before a route sees it, and in the time that it takes."""

    moved: float
    """When it was accepted, something last came or an answer ended, by the loop's clock."""
    _begun: float = 0.0
    """When the message that is coming began, or the latest answer ended."""
    _part: Literal["head", "body"] | None = None
    """Of a message, what is coming; None between two of them."""
    _unplaced: int = 0
    """Bytes that came since the parser last began a message, ended its headers or gave some of a body."""
    _body_bytes: int = 0
    _refused: bool = False
    """Nothing that still comes is looked at."""
    _fault: ApiError | None = None
    """What the parser's callbacks found."""
    _stalled: float | None = None
    """Since when its client has taken nothing of what waits to be sent."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        assert isinstance(self.server_state, Connections)
        self._all = self.server_state
        self._limits = self.server_state.limits
        self.moved = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.moved = self.loop.time()
        super().connection_made(transport)
        self._all.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.at_rest.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self.moved = self.loop.time()
        self._all.at_rest.pop(self, None)
        self._unplaced += len(data)
        super().data_received(data)
        if self._part is None:
            self._rest()
        elif self._unplaced > self._limits.head_bytes:
            self.refuse(_large_head(self._limits))

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined:
            raise ValueError("too many requests wait")  # they are answered, and the connection closes
        super().on_message_begin()
        self._part, self._begun, self._unplaced, self._body_bytes = "head", self.moved, 0, 0

    def on_headers_complete(self) -> None:
        limits = self._limits
        if len(self.url) > limits.url_bytes:
            self._fault = _long_url(limits)
        elif (
            len(self.headers) > limits.headers
            or len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > limits.head_bytes
        ):
            self._fault = _large_head(limits)
        if self._fault is not None:
            raise self._fault
        self._part, self._unplaced = "body", 0
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self.cycle.__class__ = UntilClosed
        self.headers = []  # of their own: trailers must not pass for headers

    def on_body(self, body: bytes) -> None:
        self._unplaced = 0
        if not self.cycle.response_complete:
            self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.moved = self._begun = self.loop.time()
        self._body_bytes = 0
        super().on_response_complete()
        self._rest()

    def pause_writing(self) -> None:
        self._stalled = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self.close_at_rest(0.0)

    def send_400_response(self, msg: str) -> None:
        self.refuse(self._fault or ApiError("This is no valid HTTP/1.1 request.", code="invalid_http"))

    def refuse(self, error: ApiError) -> None:
        """Read no more of this client: answer with the error where an answer is due, and close.

        Requests before the one at fault are answered first.
        """
        self._refused, self._begun = True, self.loop.time()
        self._all.at_rest.pop(self, None)
        if self._open and self._part != "body":
            self.cycle.keep_alive = False
            return
        if self._part == "body":
            if not self._open or self.cycle.response_started or self.pipeline:
                self.transport.close()
                return
            self.cycle.disconnected = True  # who waits for the body learns that it will not come
            self.cycle.message_event.set()
        self.transport.write(_as_bytes(error))
        if self.scheme == "https":  # TLS cannot close one direction
            self.transport.close()
        else:
            self.transport.write_eof()

    def look(self, now: float) -> None:
        """End what has taken too long."""
        limits, waited = self._limits, now - self.moved
        if self._stalled is not None or self.transport.is_closing():
            if now - (self._stalled or self.moved) > KEEP_ALIVE_SECONDS:
                self.transport.abort()
        elif self._refused:
            if not self._open and now - self._begun > limits.linger_seconds:
                self.transport.abort()
        elif self.flow.read_paused:  # then it waits for us
            return
        elif self._part == "head":
            if now - self._begun > limits.head_seconds:
                self.refuse(_late("headers", f"within {limits.head_seconds:g} s"))
        elif self._part == "body":
            allowed = limits.body_seconds + self._body_bytes / limits.body_rate
            if waited > limits.body_seconds or now - self._begun > allowed:
                rate = f"at {limits.body_rate} bytes a second"
                self.refuse(_late("body", f"{rate} without a pause of {limits.body_seconds:g} s"))
        elif waited > KEEP_ALIVE_SECONDS:
            self.close_at_rest(0.0)

    @property
    def done(self) -> bool:
        """All is said. Under TLS it stays until its peer says farewell too, which idle clients do not."""
        return self.transport.is_closing() and not self.transport.get_write_buffer_size()

    @property
    def _open(self) -> bool:
        """A request has come, at least its headers, and its answer is not at its end."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.disconnected

    def _rest(self) -> None:
        if self._part is None and not self._open and not self._refused and not self.transport.is_closing():
            self._all.at_rest[self] = None

    def close_at_rest(self, seconds: float) -> bool:
        """Close it where no request is open and nothing has moved for `seconds`, nor waits to be read.

        Timers come before sockets in a turn of the loop: after a long turn a request may be there unseen.
        """
        if self._open or self.transport.is_closing() or self.loop.time() - self.moved < seconds:
            return False
        if _readable(self.transport.get_extra_info("socket").fileno()):
            return False
        self._all.at_rest.pop(self, None)
        self.transport.close()
        return True


class HttpServer(uvicorn.Server):
    """Signals are the life cycle's."""

    server_state: Connections

    def __init__(self, config: uvicorn.Config, limits: Limits | None = None) -> None:
        super().__init__(config)
        self.server_state = Connections(limits or Limits())

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP_TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in [*self._connections()]:
                connection.look(now)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def take_leave(self, linger: float) -> None:
        """Take no more connections, and return when all are done.

        Requests under way are answered. A connection at rest closes when it has been so for `linger` seconds;
        whoever sends on it sooner is answered too, and told to go elsewhere.
        """
        for server in self.servers:
            await _accept_waiting(server)
            server.close()
        await asyncio.sleep(_LOOK_SECONDS)  # the last that came are known a turn of the loop later
        while connections := [one for one in self._connections() if not one.done]:
            for connection in connections:
                connection.close_at_rest(linger)
            await asyncio.sleep(_LOOK_SECONDS)

    def _connections(self) -> Iterator[Connection]:
        for connection in self.server_state.connections:
            assert isinstance(connection, Connection)
            yield connection


async def _accept_waiting(server: asyncio.Server) -> None:
    """The kernel has greeted clients that wait in the listener's queue: closing it would reset them."""
    for _ in range(BACKLOG):
        if not any(_readable(listener.fileno()) for listener in server.sockets):
            return
        await asyncio.sleep(0)


def _readable(file: int) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


def _large_head(limits: Limits) -> ApiError:
    message = (
        f"The headers are more than the {limits.headers}, or the {limits.head_bytes >> 10} KiB of all "
        "together, that this server reads."
    )
    return ApiError(message, status=431, code="headers_too_large")


def _long_url(limits: Limits) -> ApiError:
    message = f"The URL is longer than the {limits.url_bytes >> 10} KiB that this server reads."
    return ApiError(message, status=414, code="url_too_long")


def _late(what: str, wanted: str) -> ApiError:
    return ApiError(f"The {what} of the request should come {wanted}.", status=408, code="request_timeout")


def _too_many(connections: int) -> ApiError:
    message = f"{connections} connections are open, as many as this server takes; try again in a moment."
    return ApiError(message, status=503, code="too_many_connections", headers={"Retry-After": "1"})


def _as_bytes(error: ApiError) -> bytes:
    """A whole HTTP answer, for where no application can give one."""
    answer = error_response(error)
    headers = b"".join(name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
    return STATUS_LINE[error.status_code] + headers + b"connection: close\r\n\r\n" + bytes(answer.body)
