"""When a connection that a client keeps may be closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from test_http import certificate

from slipway.api.connections import Connection, HttpServer, Limits
from slipway.api.listen import listen

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
        async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
        while client.far_end.url:  # of the answered request, until the next begins
            await asyncio.sleep(0)
    client.far_end.close_at_rest(60.0)
    client.send(REQUEST[3:])
    assert (await client.receive()).endswith(b"Hi")


async def test_the_time_to_keep_a_connection_ends_it(client: Client) -> None:
    client.far_end.timeout_keep_alive_handler()
    assert await client.receive() == b""


async def test_a_tls_client_that_never_says_farewell_does_not_hold_up_the_end(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    context = ssl.create_default_context(cafile=cert)

    def talk(address: tuple[str, int]) -> ssl.SSLSocket:
        connected = context.wrap_socket(socket.create_connection(address), server_hostname=address[0])
        connected.send(REQUEST)
        got = b""
        while not got.endswith(b"Hi"):
            got += connected.recv(4096)
        return connected

    async with serving(ssl_certfile=cert, ssl_keyfile=key) as (server, address):
        with await asyncio.to_thread(talk, address):
            async with asyncio.timeout(10):
                await server.take_leave(0.0)
