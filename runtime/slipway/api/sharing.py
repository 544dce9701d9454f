"""Servers that accept for themselves: where several processes listen on a socket, and under TLS.

Of what several listen on, each takes its share of the connections.

The kernel wakes all of them, and who runs first would take what waits: of 64 connections that came at once,
58 to 64 mostly went to one of two processes. So who holds more than another leaves one to that for a moment.

An event loop that accepts under TLS tells of a connection when its handshake has ended. A client that never
begins one is nothing to it but an open file, so connections are counted, and bounded, from here on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from slipway.api.connections import Connection, HttpServer, Limits
from slipway.api.group import ABSENT, Group

LEAVE_SECONDS = 0.002
"""How long a connection is left to the others; then it is taken all the same, for they may be busy."""
RETRY_SECONDS = 1.0
"""As asyncio waits where there are no descriptors left."""

logger = logging.getLogger("slipway.api")


class Listener:
    """One of the sockets: what uvicorn asks of an `asyncio.Server`."""

    def __init__(self, listening: socket.socket, group: Group, take: Callable[[socket.socket], None]) -> None:
        self.sockets = (listening,)
        self._listening = listening
        self._group = group
        self._take = take
        self._has_left = False
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Take one connection in each turn of the loop."""
        if self._group.crowded and not self._has_left:
            self._has_left = True
            self._wait(LEAVE_SECONDS)
            return
        self._has_left = False
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another took it, or it has gone
        except OSError as error:
            logger.error("No connection can be taken: %s.", error)
            self._wait(RETRY_SECONDS)
            return
        connection.setblocking(False)
        self._group.num_connections += 1
        self._take(connection)

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(seconds, self._listen)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    async def wait_closed(self) -> None:
        """It is closed at once."""


class AcceptingServer(HttpServer):
    """One process's HTTP server. Each connection gets the TLS context that `config.ssl` is when it comes."""

    def __init__(self, config: uvicorn.Config, limits: Limits, group: Group) -> None:
        super().__init__(config, limits)
        self._group = group
        self._begun: set[asyncio.Task[None]] = set()
        """What makes transports of accepted sockets, under TLS until the end of the handshake."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = [Listener(one, self._group, self._take) for one in sockets or ()]  # type: ignore[misc]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        self._group.num_connections = self.server_state.num_accepted
        return await super().on_tick(counter)

    async def take_leave(self, linger: float) -> None:
        self._group.set_phase(ABSENT)  # nothing is left to others, nor by them to us
        await super().take_leave(linger)

    def _take(self, accepted: socket.socket) -> None:
        connection = Connection(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        task = asyncio.create_task(self._connect(connection, accepted))

        def ended(_: object) -> None:
            self._begun.discard(task)
            self.server_state.forget(connection)
            if task.cancelled():
                accepted.close()  # nobody has, if it was before the first step

        self._begun.add(task)
        if self.config.ssl is not None:
            self.server_state.expect(connection, task.cancel)
        task.add_done_callback(ended)

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        loop, limits, context = asyncio.get_running_loop(), self.server_state.limits, self.config.ssl
        patience: dict[str, Any] = {}
        if context is not None:
            patience["ssl_handshake_timeout"] = limits.handshake_seconds
            patience["ssl_shutdown_timeout"] = limits.linger_seconds
        with contextlib.suppress(OSError):  # it has gone, or its handshake failed
            await loop.connect_accepted_socket(lambda: connection, accepted, ssl=context, **patience)
