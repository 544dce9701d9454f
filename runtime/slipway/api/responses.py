"""Answers as bytes: JSON at once, or server-sent events; both end when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipway.api.errors import described, of_stream

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
"""A comment, which clients skip."""
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


def event(payload: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(payload) + b"\n\n"


def named_event(payload: msgspec.Struct) -> bytes:
    """One server-sent event, named by the tag of its payload."""
    return b"event: " + str(payload.__struct_config__.tag).encode() + b"\n" + event(payload)


def json_response(payload: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(payload), status, headers, media_type="application/json")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Runs `work`; cancels it and returns None where the client leaves first.

    The request's body must have been read: what `receive` gives then is the disconnect.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events, each sent as soon as there is one.

    Sending waits while the client does not read (the transport's back-pressure), so that nothing
    piles up here. After each `ping_seconds` of silence, unless they are 0, a `ping` tells clients and proxies
    that the stream is alive. An exception of `events` becomes a last event in
    OpenAI's shape. `close` is called in the end, whoever ended it.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        close: Callable[[], None],
        ping: bytes = PING,
        ping_seconds: float = 1.0,
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._ping = ping
        self._ping_seconds = ping_seconds
        self._news = True
        """Something was sent since the last look."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pings = asyncio.ensure_future(self._send_pings(send))
        try:
            async for chunk in self._events:
                self._news = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except Exception as error:
            payload = event(described(of_stream(error)))
            await send({"type": "http.response.body", "body": payload, "more_body": True})
        finally:
            pings.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pings(self, send: Send) -> None:
        while self._ping_seconds:
            self._news = False
            await asyncio.sleep(self._ping_seconds)
            if not self._news:
                await send({"type": "http.response.body", "body": self._ping, "more_body": True})
