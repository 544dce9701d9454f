"""A server that sends the bytes it is told to, in the pieces it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from slipway.bench.ask import Asker
from slipway.bench.forms import FORMS
from slipway.bench.http import Address, Client

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(body: object) -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"


def said(*texts: str, end: str | None = "length") -> list[bytes]:
    """A completion of these tokens, with its usage."""
    choices = [{"index": 0, "text": text, "finish_reason": None} for text in texts]
    choices[-1]["finish_reason"] = end
    usage = {"prompt_tokens": 3, "completion_tokens": len(texts)}
    return [
        *(event({"choices": [choice]}) for choice in choices),
        event({"choices": [], "usage": usage}),
        event(b"[DONE]"),
    ]


def chunks(events: Sequence[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in events) + b"0\r\n\r\n"


def with_length(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class RawServer:
    """`answers` go to one request after the other, the last of them again and again."""

    answers: list[Sequence[bytes]]
    """Each in the pieces in which it is written."""
    hang_up: bool = False
    """After each answer, without a word."""
    bodies: list[dict] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    client: Client = field(init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RawServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.client = Client(Address("127.0.0.1", port), {"X-Own": "yes"})
        try:
            yield self
        finally:
            self.client.close()
            server.close()

    def asker(self, backend: str = "openai", **fields: object) -> Asker:
        form = FORMS[backend]
        return Asker(self.client, form.path, form, {"model": "m", **fields}, keep_text=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = int(head.partition("Content-Length: ")[2].split("\r\n")[0])
                self.bodies.append(json.loads(await reader.readexactly(length)))
                pieces = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.hang_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
