"""HTTP/1.1 for a client that measures: connections are kept, and bytes are given out as they come.

On streams of asyncio and not on a library: on a small machine the client must not take the cores that it
measures, and a machine that only measures needs no more than `pip install slipway`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

MOST_HEAD = 1 << 16
READ = 1 << 16


class ProtocolError(Exception):
    """The server does not speak HTTP as it should; the text says what it sent."""


def reason_of(error: OSError) -> str:
    """In the system's words, where asyncio has others of its own."""
    number = None if isinstance(error, ssl.SSLError) else error.errno  # its numbers are TLS's own
    if number is not None and number in errno.errorcode:
        return os.strerror(number)
    return error.strerror or str(error)


def merged(*headers: Mapping[str, str]) -> dict[str, str]:
    """All of them; of one name, however it is written, the last."""
    last = {name.lower(): (name, value) for some in headers for name, value in some.items()}
    return dict(last.values())


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `prefix` is the path that stands before every endpoint, or empty."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises ValueError in a sentence for what is no http(s) URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not a URL such as http://127.0.0.1:8000.")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    @property
    def authority(self) -> str:
        return str(self).removesuffix(self.prefix).partition("://")[2]


@dataclass(slots=True)
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False
    """It has carried a request before, so that the server may have closed it meanwhile."""


@dataclass(slots=True)
class Answer:
    """The head of an answer, and its body as it comes."""

    status: int
    reason: str
    headers: dict[str, str]
    """Names in lower case."""
    connection: Connection
    ended: bool = False
    """The body was read to its end."""

    @property
    def keeps(self) -> bool:
        """The connection can carry another request."""
        framed = "content-length" in self.headers or self._chunked
        return self.ended and framed and self.headers.get("connection", "").lower() != "close"

    @property
    def _chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    async def parts(self) -> AsyncIterator[bytes]:
        """The body. Raises IncompleteReadError where it breaks off."""
        if self._chunked:
            async for part in self._chunks():
                yield part
        elif (length := self.headers.get("content-length")) is not None:
            async for part in self._exactly(int(length)):
                yield part
        else:
            while part := await self.connection.reader.read(READ):
                yield part
        self.ended = True

    async def read(self, most: int) -> bytes:
        """The body, but for what is beyond `most` bytes."""
        body = b""
        async for part in self.parts():
            body += part
            if len(body) >= most:
                break
        return body[:most]

    async def _chunks(self) -> AsyncIterator[bytes]:
        reader = self.connection.reader
        while size := int((await _until(reader, b"\r\n")).partition(b";")[0], 16):
            async for part in self._exactly(size):
                yield part
            await reader.readexactly(2)
        while await _until(reader, b"\r\n") != b"\r\n":
            pass  # trailers say nothing that is measured

    async def _exactly(self, left: int) -> AsyncIterator[bytes]:
        while left:
            part = await self.connection.reader.read(min(left, READ))
            if not part:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(part)
            yield part


class Client:
    """Connections to one server; as many as there are requests at once. `headers` are those of each."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self.address = address
        self._headers = merged({"Host": address.authority, "Content-Type": "application/json"}, headers)
        self._tls = ssl.create_default_context() if address.tls else None
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def post(self, path: str, body: bytes) -> AsyncIterator[Answer]:
        """Raises OSError where the server cannot be reached, IncompleteReadError where it hangs up and
        ProtocolError where it speaks no HTTP."""
        answer = await self._ask(self._request(path, body))
        try:
            yield answer
        finally:
            if answer.keeps:
                self._idle.append(answer.connection)
            else:
                answer.connection.writer.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.writer.close()
        self._idle.clear()

    def _request(self, path: str, body: bytes) -> bytes:
        headers = merged(self._headers, {"Content-Length": str(len(body))})
        lines = [
            f"POST {self.address.prefix}{path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def _ask(self, request: bytes) -> Answer:
        """Once more over a new connection, where the server has closed an old one that nobody used."""
        while True:
            connection = await self._connection()
            try:
                connection.writer.write(request)
                await connection.writer.drain()
                return await _head(connection)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                connection.writer.close()
                heard = isinstance(error, asyncio.IncompleteReadError) and error.partial
                if heard or not connection.used:
                    raise
            except BaseException:
                connection.writer.close()
                raise

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            connection.used = True
            if not connection.reader.at_eof():
                return connection
            connection.writer.close()
        address = self.address
        opened = await asyncio.open_connection(address.host, address.port, ssl=self._tls, limit=MOST_HEAD)
        return Connection(*opened)


async def _until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    try:
        return await reader.readuntil(end)
    except asyncio.LimitOverrunError:
        raise ProtocolError(f"The answer has a head or a line of more than {MOST_HEAD} bytes.") from None


async def _head(connection: Connection) -> Answer:
    head = await _until(connection.reader, b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    version, _, rest = first.partition(" ")
    status, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not status.isdecimal():
        raise ProtocolError(f"This is no answer of HTTP: {first[:80]!r}.")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Answer(int(status), reason, headers, connection)
