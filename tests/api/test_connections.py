"""When a connection that a client keeps may be closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from e2e.ground.patience import scaled
from test_http import certificate

from slipway.api.connections import Connection, HttpServer, Limits
from slipway.api.group import Group
from slipway.api.listen import listen
from slipway.api.sharing import AcceptingServer

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def greet(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"Hi"})


class Client:
    """A kept connection and the server's side of it, in one event loop."""

    def __init__(self, server: HttpServer, connected: socket.socket) -> None:
        self._server, self._socket = server, connected

    @property
    def far_end(self) -> Connection:
        (connection,) = self._server.server_state.connections
        assert isinstance(connection, Connection)
        return connection

    def send(self, text: bytes) -> None:
        """Into the kernel: the server, in this thread, cannot have seen it when this returns."""
        self._socket.send(text)

    async def receive(self) -> bytes:
        """The next answer; nothing where the connection is closed."""
        got = b""
        async with asyncio.timeout(scaled(10)):
            while not got.endswith(b"Hi"):
                more = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
                if not more:
                    break
                got += more
        return got


@contextlib.asynccontextmanager
async def serving(
    app: Any = greet, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[HttpServer, tuple[str, int]]]:
    """A server and its address."""
    sockets = listen("127.0.0.1", 0)
    address = sockets[0].getsockname()
    config = uvicorn.Config(app, http=Connection, lifespan="off", ws="none", log_config=None, **options)
    if "ssl_certfile" in options:
        server: HttpServer = AcceptingServer(config, limits or Limits(), Group.of_one())
    else:
        server = HttpServer(config, limits)
    task = asyncio.create_task(server.serve(sockets=sockets))
    try:
        yield server, address
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """It has had an answer, and is at rest."""
    async with serving() as (server, address):
        with socket.create_connection(address) as connected:
            connected.setblocking(False)
            made = Client(server, connected)
            made.send(REQUEST)
            assert (await made.receive()).endswith(b"Hi")
            yield made


async def test_a_connection_is_not_closed_over_a_request_that_nobody_has_read(client: Client) -> None:
    client.send(REQUEST)
    client.far_end.close_at_rest(0.0)
    client.far_end.timeout_keep_alive_handler()
    assert (await client.receive()).endswith(b"Hi")
    client.far_end.close_at_rest(0.0)
    assert await client.receive() == b""


async def test_a_connection_at_rest_stays_for_the_time_that_it_is_given(client: Client) -> None:
    client.far_end.close_at_rest(60.0)
    client.send(REQUEST[:3])
    async with asyncio.timeout(scaled(10)):
        while client.far_end.url:  # of the answered request, until the next begins
            await asyncio.sleep(0)
    client.far_end.close_at_rest(60.0)
    client.send(REQUEST[3:])
    assert (await client.receive()).endswith(b"Hi")


async def test_the_time_to_keep_a_connection_ends_it(client: Client) -> None:
    client.far_end.timeout_keep_alive_handler()
    assert await client.receive() == b""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate and its key."""
    return certificate(tmp_path_factory.mktemp("tls"), "first")


def say_hello(address: tuple[str, int], cert: str, own: Path | None = None) -> ssl.SSLSocket:
    """A client's connection that has had its answer, for a thread beside the server's; `own` is its
    certificate with the key. Raises OSError where the server or the client takes no such connection."""
    context = ssl.create_default_context(cafile=cert)
    if own is not None:
        context.load_cert_chain(own)
    connected = context.wrap_socket(socket.create_connection(address, 10), server_hostname=address[0])
    connected.send(REQUEST)
    got = b""
    while not got.endswith(b"Hi"):
        if not (more := connected.recv(4096)):
            raise ConnectionResetError(got)
        got += more
    return connected


async def test_a_tls_client_that_never_says_farewell_does_not_hold_up_the_end(pair: tuple[str, str]) -> None:
    async with serving(ssl_certfile=pair[0], ssl_keyfile=pair[1]) as (server, address):
        with await asyncio.to_thread(say_hello, address, pair[0]):
            async with asyncio.timeout(scaled(10)):
                await server.take_leave(0.0)


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
def test_handshakes_that_do_not_come_count_as_connections_at_rest(
    pair: tuple[str, str], new_loop: NewLoop
) -> None:
    limits = Limits(connections=4)

    async def check() -> None:
        async with serving(limits=limits, ssl_certfile=pair[0], ssl_keyfile=pair[1]) as (server, address):
            with contextlib.ExitStack() as opened:
                silent = [opened.enter_context(socket.create_connection(address)) for _ in range(40)]
                await closed(silent[:36])
                assert server.server_state.num_accepted == 4
                opened.enter_context(await asyncio.to_thread(say_hello, address, pair[0]))
                await closed(silent[:37])
                opened.enter_context(socket.create_connection(address))
                await closed(silent[:38])
                assert [*map(is_closed, silent[38:])] == [False, False]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


@LOOPS
def test_a_tls_connection_that_gives_way_waits_for_no_farewell(
    pair: tuple[str, str], new_loop: NewLoop
) -> None:
    limits = Limits(connections=2)

    async def check() -> None:
        async with serving(limits=limits, ssl_certfile=pair[0], ssl_keyfile=pair[1]) as (server, address):
            with contextlib.ExitStack() as opened:
                for _ in range(6):
                    opened.enter_context(await asyncio.to_thread(say_hello, address, pair[0]))
                async with asyncio.timeout(scaled(5)):
                    while server.server_state.num_accepted > 2:
                        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


@LOOPS
def test_a_handshake_has_only_so_long(pair: tuple[str, str], new_loop: NewLoop) -> None:
    limits = Limits(handshake_seconds=0.05)

    async def check() -> None:
        async with serving(limits=limits, ssl_certfile=pair[0], ssl_keyfile=pair[1]) as (server, address):
            with socket.create_connection(address) as silent:
                await closed([silent])
            async with asyncio.timeout(scaled(10)):
                while server.server_state.num_accepted:
                    await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


async def test_most_of_those_over_the_limit_are_told_so_and_the_rest_closed() -> None:
    never = asyncio.Event()

    async def hold(scope: Any, receive: Any, send: Any) -> None:
        await never.wait()

    async with serving(hold, Limits(connections=1)) as (server, address):
        with contextlib.ExitStack() as opened:
            opened.enter_context(socket.create_connection(address)).sendall(REQUEST)
            async with asyncio.timeout(scaled(10)):
                while not server.server_state.tasks:
                    await asyncio.sleep(0.01)
            others = [opened.enter_context(socket.create_connection(address)) for _ in range(150)]
            told = [await asyncio.to_thread(other.recv, 12) for other in others]
            never.set()
    assert told == [b"HTTP/1.1 503"] * 128 + [b""] * 22


def is_closed(connected: socket.socket) -> bool:
    """By the other side."""
    connected.setblocking(False)
    try:
        return connected.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def closed(connected: list[socket.socket]) -> None:
    """Until all of them are."""
    async with asyncio.timeout(scaled(10)):
        while not all(map(is_closed, connected)):
            await asyncio.sleep(0.01)
