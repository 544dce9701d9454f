"""Engines of other nodes in this server: each has a socket here, at which it is met as one of this node is.

Its node keeps a connection to this one for heartbeats, and for each engine one that waits. A client that
comes to the socket here is joined to that, and its node then dials the next. What is sent on it are the
frames of the wire, which both ends bound; nothing reads them on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading

import msgspec

from slipway.dist.beats import ENDED, Heartbeats
from slipway.dist.gate import Gate
from slipway.dist.ports import Listener, listen, tell
from slipway.dist.trust import Greeting
from slipway.engine.launch import Address
from slipway.exits import ENGINE_DIED, ExitCode
from slipway.temporary import socket_folder

BEATS, ENGINE = "data-parallel beats", "data-parallel engine"
"""What a connection is for."""
PATIENCE = 300.0
"""Seconds for all engines to come."""
MOST_WAITING = 4
"""Connections of an engine that no client has come for."""
_CHUNK = 1 << 18

log = logging.getLogger("slipway.engine")


class Claim(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a connection is of."""

    size: int
    """Of all engines."""
    ranks: list[int]
    """Of the node's engines, or the one engine's."""


async def join(one: socket.socket, other: socket.socket, begin: bytes = b"") -> None:
    """Hand on what either sends, in both directions, until one of them ends. `begin` is for `other`."""
    ends = [await asyncio.open_connection(sock=end) for end in (one, other)]
    (from_one, to_one), (from_other, to_other) = ends
    to_other.write(begin)
    directions = [
        asyncio.ensure_future(_hand_on(from_one, to_other)),
        asyncio.ensure_future(_hand_on(from_other, to_one)),
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        for _, writer in ends:
            writer.close()
        await asyncio.gather(*directions, *(w.wait_closed() for _, w in ends), return_exceptions=True)


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        await writer.drain()


class RemoteEngine:
    """One of another node: what knows how it ended."""

    def __init__(self, meeting: Meeting, rank: int, size: int) -> None:
        self.folder = meeting.folder
        path = os.path.join(meeting.folder, _socket(rank))
        self.address = Address(path, rank, f"engine {rank} of {size}")
        self._meeting = meeting

    def post_mortem(self) -> tuple[str, ExitCode]:
        return self._meeting.cause(self.address.rank, self.address.name), ENGINE_DIED

    def stop(self, patience: float = 0) -> None:
        """Its node ends it when it loses this one."""
        self._meeting.close()


class Meeting:
    """Where engines of other nodes come, in a thread of its own."""

    def __init__(self, listener: socket.socket, key: bytes, ranks: range, size: int) -> None:
        """ranks: those that are to come

        Raises Exit where their sockets have no place.
        """
        self._where = "{}:{}".format(*listener.getsockname()[:2])
        self._folder = socket_folder(_socket(max(ranks)))
        self.folder = self._folder.name
        self._size = size
        self._ranks = ranks
        self._nodes: dict[int, str] = {}
        """By rank, the node that it is on."""
        self._lost: dict[int, str] = {}
        self._beats: list[Heartbeats] = []
        self._connections: list[socket.socket] = []
        self._closing, self._closed = threading.Lock(), False
        self.engines = [RemoteEngine(self, rank, size) for rank in ranks]
        self._loop = asyncio.new_event_loop()
        self._waiting: dict[int, asyncio.Queue[socket.socket]] = {
            rank: asyncio.Queue(MOST_WAITING) for rank in ranks
        }
        self._clients: dict[int, set[asyncio.Task[None]]] = {rank: set() for rank in ranks}
        self._listeners = {one.address.rank: _bound(one.address.socket_path) for one in self.engines}
        self._thread = threading.Thread(target=self._run, name="meeting", daemon=True)
        self._thread.start()
        self._gate = Gate(listener, key, self)

    @classmethod
    def at(cls, where: tuple[str, int], key: bytes, ranks: range, size: int, argument: str) -> Meeting:
        """Listens there, and says so. Raises Exit, which names the argument that said where."""
        listener = listen(*where, argument)
        tell([Listener("engines of other nodes", *where, bool(key), "the server ends")], key)
        return cls(listener, key, ranks, size)

    def refusal(self, greeting: Greeting) -> str:
        try:
            claim = msgspec.msgpack.decode(greeting.claim, type=Claim)
        except (msgspec.DecodeError, ValueError):
            return "it does not say which engine it is"
        if claim.size != self._size:
            return f"it is of --data-parallel-size {claim.size}, and this server of {self._size}"
        if not claim.ranks or (unknown := set(claim.ranks) - set(self._ranks)):
            return f"engine {min(unknown, default='?')} is none that is to come: {list(self._ranks)} are"
        if greeting.purpose == BEATS:
            here = [rank for rank in claim.ranks if rank in self._nodes]
            return f"engine {here[0]} has come from {self._nodes[here[0]]}" if here else ""
        if greeting.purpose != ENGINE or len(claim.ranks) != 1 or claim.ranks[0] not in self._nodes:
            return "its node has not come"
        return "enough of its connections wait" if self._waiting[claim.ranks[0]].full() else ""

    def take(self, greeting: Greeting, connection: socket.socket) -> None:
        ranks = msgspec.msgpack.decode(greeting.claim, type=Claim).ranks
        peer = connection.getpeername()[0]
        if greeting.purpose == ENGINE:
            self._loop.call_soon_threadsafe(self._put, ranks[0], connection)
            return
        log.info("engines %s have come from %s", ranks, peer)
        self._nodes.update(dict.fromkeys(ranks, peer))
        self._connections.append(connection)
        self._beats.append(Heartbeats({ranks[0]: connection}, lambda _, how: self._lose(ranks, how)))

    def cause(self, rank: int, name: str) -> str:
        """Why an engine is not there."""
        name = f"{name[:1].upper()}{name[1:]}"
        if rank not in self._nodes:
            return f"{name} did not come to {self._where} within {PATIENCE:.0f} s."
        how = self._lost.get(rank, ENDED)
        return (
            f"{name} on {self._nodes[rank]} {'hung up; the log there may say why' if how == ENDED else how}."
        )

    def close(self) -> None:
        with self._closing:
            closed, self._closed = self._closed, True
        if closed:
            return
        self._gate.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._folder.cleanup()

    def _put(self, rank: int, connection: socket.socket) -> None:
        try:
            self._waiting[rank].put_nowait(connection)
        except asyncio.QueueFull:
            connection.close()

    def lose(self, ranks: list[int], node: str, how: str) -> None:
        """What was to start engines on a node has ended; where they came, they have said so themselves."""
        if not any(rank in self._nodes for rank in ranks):
            self._nodes.update(dict.fromkeys(ranks, node))
            self._lose(ranks, how)

    def _lose(self, ranks: list[int], how: str) -> None:
        for rank in ranks:
            self._lost[rank] = how
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._cut, ranks)

    def _cut(self, ranks: list[int]) -> None:
        for rank in ranks:
            self._listeners[rank].close()
            for client in self._clients[rank]:
                client.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            for rank in self._ranks:
                self._loop.create_task(self._meet(rank))
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            for listener in self._listeners.values():
                listener.close()
            self._loop.close()

    async def _meet(self, rank: int) -> None:
        """Join each client of an engine to a connection of its own."""
        with contextlib.suppress(OSError):  # it is lost
            while True:
                client, _ = await self._loop.sock_accept(self._listeners[rank])
                task = self._loop.create_task(self._join(rank, client))
                self._clients[rank].add(task)
                task.add_done_callback(self._clients[rank].discard)

    async def _join(self, rank: int, client: socket.socket) -> None:
        with client, contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(PATIENCE):
                connection = await self._waiting[rank].get()
            with connection:
                connection.setblocking(False)
                await join(client, connection)


def _socket(rank: int) -> str:
    return f"engine-{rank}.sock"


def _bound(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(socket.SOMAXCONN)
    listener.setblocking(False)
    return listener
