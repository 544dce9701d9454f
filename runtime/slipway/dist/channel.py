"""Rows from a pipeline stage to the next: fp32 [rows, hidden], over a socket that joins both processes.

A message is the number of its rows, four bytes, and the rows. They are sent from where the step left them and
received where the next stage's step reads them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from slipway.dist.mesh import Mesh
from slipway.load.arrays import Floats

Ends = tuple[socket.socket | None, socket.socket | None]
"""Of what leads to the stage before a rank's, and to the one behind it."""
_HEAD = struct.Struct("!I")
BUFFER = 1 << 20
"""Bytes that may lie between two stages, where the kernel allows so many; who sends more waits."""


class Channel(Protocol):
    """One end of the way from a stage to the next, of the same tensor rank."""

    def send(self, rows: Floats) -> None:
        """Waits while the other end has not taken much. Raises NeighbourGone."""

    def receive(self, into: Floats) -> int:
        """Wait for the next rows, which become the first of `into`; how many there are.

        Raises NeighbourGone, and ValueError for more than there is room for.
        """

    def leave(self) -> None:
        """Whoever waits at either end is told that the other has gone. Called in any thread."""

    def close(self) -> None: ...


class NeighbourGone(Exception):
    """A stage before or behind this one has ended, or does not wait any more."""


class Meeting(Protocol):
    """What computes a stage."""

    @property
    def taken(self) -> Sequence[Floats]:
        """The array [most rows, hidden] of the rows that a step begins with."""

    @property
    def told(self) -> Sequence[Floats]:
        """The one of the rows that it has ended with."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The stages before and behind one, where there are any."""

    before: Channel | None = None
    behind: Channel | None = None

    def take(self, model: Meeting) -> int:
        """Wait for the rows that a step begins with, where it does; how many there are."""
        return 0 if self.before is None else self.before.receive(model.taken[0])

    def give(self, model: Meeting, count: int, taken: int) -> None:
        """Send what a step of so many rows ends with. Raises ValueError where it began with others."""
        if self.before is not None and taken != count:
            raise ValueError(f"{taken} rows came from the stage before, of a step of {count}: slots differ.")
        if self.behind is not None:
            self.behind.send(model.told[0][:count])

    def leave(self) -> None:
        """As of each channel."""
        for channel in filter(None, (self.before, self.behind)):
            channel.leave()

    def close(self) -> None:
        for channel in filter(None, (self.before, self.behind)):
            channel.close()


ALONE = Neighbours()


class SocketChannel:
    """Over one end of a pair of Unix sockets."""

    def __init__(self, connection: socket.socket, neighbour: str) -> None:
        """neighbour: whose end the other is, for messages"""
        self._socket = connection
        self._neighbour = neighbour
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)

    def send(self, rows: Floats) -> None:
        parts = [memoryview(_HEAD.pack(len(rows))), _octets(rows)]
        while parts:
            try:
                sent = self._socket.sendmsg(parts)
            except OSError as error:
                raise self._gone() from error
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][sent:]

    def receive(self, into: Floats) -> int:
        head = bytearray(_HEAD.size)
        self._fill(memoryview(head))
        (count,) = _HEAD.unpack(head)
        if count > len(into):
            raise ValueError(f"{self._neighbour} sends {count} rows, and a step has at most {len(into)}.")
        self._fill(_octets(into[:count]))
        return int(count)

    def leave(self) -> None:
        with suppress(OSError):  # the other end has gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _fill(self, octets: memoryview) -> None:
        while len(octets):
            try:
                count = self._socket.recv_into(octets)
            except OSError as error:
                raise self._gone() from error
            if not count:
                raise self._gone()
            octets = octets[count:]

    def _gone(self) -> NeighbourGone:
        return NeighbourGone(f"{self._neighbour} has gone.")


def ends_of_ranks(ranks: range, tp: int) -> dict[int, Ends]:
    """Of pairs of sockets between each of these ranks, which are on one host, and the one of its place in the
    next stage, where that is among them."""
    pairs = {rank: socket.socketpair() for rank in ranks if rank + tp in ranks}
    return {
        rank: (
            pairs[rank - tp][1] if rank - tp in pairs else None,
            pairs[rank][0] if rank in pairs else None,
        )
        for rank in ranks
    }


def neighbours(ends: Ends, mesh: Mesh, rank: int) -> Neighbours:
    """Over its ends of these sockets."""
    others = (rank - mesh.tp, rank + mesh.tp)
    before, behind = (
        None if end is None else SocketChannel(end, mesh.name(other).capitalize())
        for end, other in zip(ends, others, strict=True)
    )
    return Neighbours(before, behind)


def _octets(rows: Floats) -> memoryview:
    """Of an array whose rows follow each other."""
    return rows.data.cast("B") if rows.size else memoryview(b"")
