"""Connections that clients keep for their next request, and how they end without losing one.

HTTP/1.1 has no word to a client at rest that its connection is about to close: a request that is on its way
then meets a closed socket, and a POST is not sent again. So an answer says `Connection: close` where the
server knows it (`api.edge`), and a connection that was never told is closed only when no request can come.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slipway.api.listen import BACKLOG

KEEP_ALIVE_SECONDS = 620
"""Longer than what clients and balancers keep idle connections, such as Go's client (90 s) and Google's
balancers (600 s): they close first, and no request is sent into a closing connection."""
LINGER_SECONDS = 6.0
"""The same for a server that ends, where only the usual can be waited for: `httpx`, and OpenAI's client with
it, give up a connection that was idle for 5 s."""
_LOOK_SECONDS = 0.02


class Connection(HttpToolsProtocol):
    """One client's, which knows since when it is at rest."""

    _moved: float
    """When something last came or an answer ended, by the loop's clock."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._moved = self.loop.time()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._moved = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._moved = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        self.close_at_rest(0.0)

    @property
    def done(self) -> bool:
        """All is said. Under TLS it stays until its peer says farewell too, which idle clients do not."""
        return self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def close_at_rest(self, seconds: float) -> None:
        """Close it where no request is open and nothing has moved for `seconds`, nor waits to be read.

        Timers come before sockets in a turn of the loop: after a long turn a request may be there unseen.
        """
        open_request = self.cycle is not None and not self.cycle.response_complete
        if open_request or self.transport.is_closing() or self.loop.time() - self._moved < seconds:
            return
        if not _readable(self.transport.get_extra_info("socket").fileno()):
            self.transport.close()


class HttpServer(uvicorn.Server):
    """Signals are the life cycle's."""

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
