"""What one client may send and how long it may take, over sockets: the others notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2e.ground.patience import scaled
from test_connections import REQUEST, serving

from slipway.api.connections import KEEP_ALIVE_SECONDS, Connection, HttpServer, Limits

POST = b"POST / HTTP/1.1\r\nHost: here\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body, once that has come."""
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length, more = length + len(message["body"]), message["more_body"]
    names = b" ".join(name for name, _ in scope["headers"])
    body = b"%d of %s %s." % (length, scope["raw_path"], names)
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        """All of it, or as much as the server takes."""
        with contextlib.suppress(ConnectionError):
            for part in parts:
                self.writer.write(part)
                await self.writer.drain()

    async def answer(self) -> bytes:
        """One whole answer with a length."""
        async with asyncio.timeout(scaled(20)):
            head = await self.reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 100"):
                return head
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            return head + await self.reader.readexactly(int(length.partition(b":")[2]))

    async def rest(self) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(scaled(20)):
            return await self.reader.read()


@contextlib.asynccontextmanager
async def clients(number: int = 1, **limits: Any) -> AsyncIterator[list[Client]]:
    async with serving(echo, Limits(**limits)) as (_, address), contextlib.AsyncExitStack() as stack:
        made = []
        for _ in range(number):
            client = Client(*await asyncio.open_connection(*address))
            stack.callback(client.writer.close)
            made.append(client)
        yield made


@contextlib.asynccontextmanager
async def one(**limits: Any) -> AsyncIterator[Client]:
    async with clients(**limits) as (client,):
        yield client


@contextlib.asynccontextmanager
async def repeating(client: Client, piece: bytes, *, before: bytes, pause: float = 0) -> AsyncIterator[None]:
    """A client that sends the piece again and again, whatever it is told."""

    async def send() -> None:
        await client.send(before)
        while True:
            await client.send(piece)
            await asyncio.sleep(pause)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()


def refused(answer: bytes, status: int, words: bytes) -> None:
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert words in answer, answer
    assert b"connection: close" in answer
    assert b"content-type: application/json" in answer


async def test_a_header_of_24_mib_is_refused_and_thrown_away() -> None:
    async with one() as client:
        mebibyte = b"a" * (1 << 20)
        await client.send(POST, b"X: ", *[mebibyte] * 24, b"\r\n\r\n")
        refused(await client.rest(), 431, b"64 KiB")


@pytest.mark.parametrize("piece", [b"a" * 100, b"\r\nX: y"], ids=["one", "many"])
async def test_headers_that_never_end_are_refused(piece: bytes) -> None:
    async with one() as client, repeating(client, piece, before=POST + b"X: "):
        refused(await client.rest(), 431, b"headers")


async def test_the_number_of_headers_and_the_length_of_the_url_are_bounded() -> None:
    async with clients(4, headers=8, url_bytes=1000) as (few, many, short, long):
        await few.send(REQUEST[:-2], b"X: y\r\n" * 7, b"\r\n")
        assert (await few.answer()).startswith(b"HTTP/1.1 200")
        await many.send(REQUEST[:-2], b"X: y\r\n" * 8, b"\r\n")
        refused(await many.rest(), 431, b"more than the 8")
        await short.send(REQUEST.replace(b"/ ", b"/" + b"a" * 999 + b" "))
        assert (await short.answer()).startswith(b"HTTP/1.1 200")
        await long.send(REQUEST.replace(b"/ ", b"/" + b"a" * 1000 + b" "))
        refused(await long.rest(), 414, b"URL")


async def test_trailers_are_bounded_and_pass_for_no_headers() -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"
    async with clients(2) as (small, large):
        await small.send(chunked, b"Authorization: Bearer forged\r\n\r\n")
        answer = await small.answer()
        assert b"2 of / host transfer-encoding." in answer
        async with repeating(large, b"a" * 1000, before=chunked + b"X: "):
            refused(await large.rest(), 431, b"64 KiB")


async def test_a_malformed_request_is_refused_in_the_shape_of_all_errors() -> None:
    async with one() as client:
        await client.send(b"HELO here\r\n\r\n")
        refused(await client.rest(), 400, b'"code":"invalid_http"')


async def test_headers_that_drip_are_given_up() -> None:
    async with one(head_seconds=0.3) as client, repeating(client, b"X: y\r\n", before=POST, pause=0.02):
        refused(await client.rest(), 408, b"headers of the request should come within 0.3 s")


async def test_a_body_that_stalls_is_given_up() -> None:
    async with one(body_seconds=0.2) as client:
        await client.send(POST, b"Content-Length: 10\r\n\r\n12345")
        refused(await client.rest(), 408, b"without a pause of 0.2 s")


async def test_a_body_that_drips_is_given_up() -> None:
    head = POST + b"Content-Length: 100000\r\n\r\n"
    async with (
        one(body_seconds=0.2, body_rate=10_000) as client,
        repeating(client, b"x", before=head, pause=0.01),
    ):
        refused(await client.rest(), 408, b"10000 bytes a second")


async def test_over_the_limit_the_connection_longest_at_rest_gives_way() -> None:
    async with serving(echo, Limits(connections=2)) as (server, address):
        opened = [Client(*await asyncio.open_connection(*address)) for _ in range(2)]
        for client in opened:
            await client.send(REQUEST)
            await client.answer()
        third = Client(*await asyncio.open_connection(*address))
        assert await opened[0].rest() == b""
        await third.send(REQUEST)
        assert (await third.answer()).startswith(b"HTTP/1.1 200")
        await opened[1].send(POST, b"Content-Length: 1\r\n\r\n")
        await third.send(POST, b"Content-Length: 1\r\n\r\n")
        async with asyncio.timeout(scaled(10)):
            while server.server_state.at_rest:
                await asyncio.sleep(0)
        late = Client(*await asyncio.open_connection(*address))
        answer = await late.rest()
        refused(answer, 503, b"2 connections are open")
        assert b"retry-after: 1" in answer
        await third.send(b"x")
        assert (await third.answer()).startswith(b"HTTP/1.1 200")
        for client in (*opened, third, late):
            client.writer.close()


async def test_a_client_that_never_says_a_word_is_idle_too() -> None:
    async with serving(echo) as (server, address):
        client = Client(*await asyncio.open_connection(*address))
        (connection,) = await connections(server)
        now = asyncio.get_running_loop().time()
        connection.look(now + KEEP_ALIVE_SECONDS - 60)
        assert not connection.transport.is_closing()
        connection.look(now + KEEP_ALIVE_SECONDS + 60)
        assert await client.rest() == b""
        client.writer.close()


async def test_a_client_that_does_not_read_its_answer_is_given_up() -> None:
    left = asyncio.Event()

    async def flood(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not left.is_set():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})

    async with serving(flood) as (server, address):
        with socket.create_connection(address) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, REQUEST)
            (connection,) = await connections(server)
            async with asyncio.timeout(scaled(10)):
                while not connection.flow.write_paused:
                    await asyncio.sleep(0)
            left.set()
            connection.look(asyncio.get_running_loop().time() + KEEP_ALIVE_SECONDS + 60)
            async with asyncio.timeout(scaled(10)):
                while server.server_state.connections:
                    await asyncio.sleep(0)


async def connections(server: HttpServer) -> list[Connection]:
    """Those that there are, once there is one."""
    async with asyncio.timeout(scaled(10)):
        while not (made := [*server.server_state.connections]):
            await asyncio.sleep(0)
    return made  # type: ignore[return-value]


def test_connections_have_room_in_the_limit_of_files() -> None:
    program = (
        "import resource; from slipway.api.listen import room_for\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))\n"
        "print(room_for(300), room_for(8192), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["300", "768", "1024", "1024"]


async def test_requests_sent_ahead_are_answered_in_turn_up_to_a_number() -> None:
    async with clients(2, pipelined=4) as (some, many):
        await some.send(REQUEST.replace(b"/ ", b"/1 ") + REQUEST.replace(b"/ ", b"/2 "))
        assert b"of /1" in await some.answer()
        assert b"of /2" in await some.answer()
        await many.send(REQUEST * 1000)
        assert (await many.rest()).count(b"HTTP/1.1 200") == 5


async def test_what_is_broken_behind_an_open_request_leaves_its_answer_whole() -> None:
    async with one() as client:
        await client.send(REQUEST + b"HELO\r\n\r\n")
        whole = await client.rest()
        assert whole.startswith(b"HTTP/1.1 200")
        assert whole.count(b"HTTP/1.1") == 1


async def test_a_client_may_wait_for_leave_to_send_its_body() -> None:
    async with one() as client:
        await client.send(POST, b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (await client.answer()).startswith(b"HTTP/1.1 100 Continue")
        await client.send(b"abc")
        assert b"3 of /" in await client.answer()


async def test_a_client_that_ends_in_the_middle_of_its_body_has_left() -> None:
    async with one() as client:
        await client.send(POST, b"Content-Length: 3\r\n\r\na")
        client.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        assert await client.rest() == b""


async def test_lines_without_a_request_leave_a_connection_at_rest() -> None:
    async with serving(echo, Limits()) as (server, address):
        client = Client(*await asyncio.open_connection(*address))
        await client.send(b"\r\n" * 1000, REQUEST)
        assert (await client.answer()).startswith(b"HTTP/1.1 200")
        await client.send(b"\r\n" * 1000)
        async with asyncio.timeout(scaled(10)):
            while not server.server_state.at_rest:
                await asyncio.sleep(0)
        client.writer.close()
