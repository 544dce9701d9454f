"""`slipway serve --headless`: engines of this node for a server whose API is on another."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from slipway.api.daemon import in_daemon
from slipway.api.group import as_exit
from slipway.dist.beats import ENDED, Heartbeats
from slipway.dist.frames import encode_frame
from slipway.dist.trust import Caller, Distrusted, Refused
from slipway.engine.balanced import connect
from slipway.engine.config import EngineConfig
from slipway.engine.launch import Address, Launched
from slipway.engine.tunnel import BEATS, ENGINE, PATIENCE, Claim, join
from slipway.exits import ADDRESS_UNUSABLE, BAD_ARGUMENTS, ENGINE_DIED, Exit
from slipway.processes import STOP_SIGNALS

RETRY_SECONDS = 0.2
"""Between attempts to reach the head, which may start later."""
NO_API = -1
"""Its number among clients of an engine: the head's API processes count from 0."""
LAST_WORDS_SECONDS = 10.0
"""For the head to hear why an engine has ended, and to end."""


class EnginesOrder(msgspec.Struct, frozen=True):
    """What Ray carries to a node that it starts engines on."""

    config: EngineConfig
    ranks: list[int]
    """Of this node's engines, among all."""
    size: int
    """Of all."""
    head: tuple[str, int]
    """Where the server is."""
    key: bytes
    """The cluster's, which lies in no file that all nodes have."""


def run(size: int, key: bytes, engines: Sequence[Launched], address: tuple[str, int]) -> int:
    """Until a signal or the head ends it; returns the exit code. Raises Exit for a failure.

    size     of all engines that share requests
    address  of the head
    """
    with asyncio.Runner() as runner:
        return runner.run(Node(size, key, engines, address).run())


class Node:
    """One node's engines, and their way to the head."""

    def __init__(self, size: int, key: bytes, engines: Sequence[Launched], address: tuple[str, int]) -> None:
        self._address = address
        self._engines = engines
        self._key, self._size = key, size
        addresses = [engine.address for engine in engines]
        self._client = connect(addresses, engines, client_id=NO_API)
        """For the engines' last words alone."""
        self._left = asyncio.Event()
        self._lost: Exit | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._left.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        reading = asyncio.create_task(self._client.run(on_stats=lambda rank, stats: None))
        endings = [asyncio.create_task(end) for end in (self._left.wait(), self._mourn(), self._serve())]
        try:
            await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
            if self._client.state == "dead":
                await endings[1]  # it raises the cause
            if endings[2].done():
                endings[2].result()
            if self._lost is not None:
                raise self._lost
            return 0
        finally:
            for task in (reading, *endings):
                task.cancel()
            await asyncio.gather(reading, *endings, return_exceptions=True)
            await self._client.close()

    async def _mourn(self) -> None:
        failure = await self._client.wait_dead()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._left.wait()
        raise as_exit(failure)

    async def _serve(self) -> None:
        """Until the head has gone. Raises Exit."""
        ranks = [engine.address.rank for engine in self._engines]
        beats = await in_daemon(partial(self._dial, BEATS, ranks))
        loop = asyncio.get_running_loop()

        def lost(_: int, how: str) -> None:
            loop.call_soon_threadsafe(self._lose, how)

        heartbeats = Heartbeats({0: beats}, lost)
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self._engines:
                    group.create_task(self._dig(engine.address))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            heartbeats.close()
            beats.close()

    def _lose(self, how: str) -> None:
        """The head has gone: as it was told to, or not."""
        if how != ENDED:
            self._lost = Exit(ENGINE_DIED, "The API server at {}:{} {}.".format(*self._address, how))
        self._left.set()

    async def _dig(self, address: Address) -> None:
        """Keep one connection waiting for a client of this engine, until the head has gone."""
        loop, joined = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            while True:
                # The head has taken the beats, with this key. If it hangs up now, it ends, and they tell.
                connection = await in_daemon(partial(self._dial, ENGINE, [address.rank], Refused))
                connection.setblocking(False)
                if not (begin := await loop.sock_recv(connection, 1 << 16)):
                    return
                task = loop.create_task(self._join(connection, address, begin))
                joined.add(task)
                task.add_done_callback(joined.discard)
        except OSError:
            return
        finally:
            for task in joined:
                task.cancel()

    async def _join(self, connection: socket.socket, address: Address, begin: bytes) -> None:
        loop, engine = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        engine.setblocking(False)
        with connection, engine:
            try:
                await loop.sock_connect(engine, address.socket_path)
            except OSError:  # it ended before this client came, who is told why
                failure = await self._client.wait_dead()
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(connection, encode_frame(failure))
                return
            await join(connection, engine, begin)

    def _dial(self, purpose: str, ranks: list[int], final: type[Distrusted] = Distrusted) -> socket.socket:
        """A connection that the head has taken. Raises Exit.

        final  after which there is no other attempt
        """
        end = time.monotonic() + PATIENCE
        claim = msgspec.msgpack.encode(Claim(self._size, ranks))
        where = "{}:{}".format(*self._address)
        while True:
            try:
                connection = socket.create_connection(self._address, timeout=10)
                Caller(self._key, purpose, claim).challenge(connection)
                return connection
            except final as error:
                message = f"The server at {where} does not take this node: {error}."
                raise Exit(BAD_ARGUMENTS, message, argument="data_parallel_address") from None
            except (Distrusted, OSError) as error:
                if time.monotonic() > end:
                    message = f"No server could be reached at {where} within {PATIENCE:.0f} s: {error}."
                    raise Exit(ADDRESS_UNUSABLE, message, argument="data_parallel_address") from None
                time.sleep(RETRY_SECONDS)
