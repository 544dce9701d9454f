"""The API processes of one server: what each is told, what it and its parent say, what all of them share.

Imports little: the parent needs nothing else of the API.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from socket import socket

import msgspec

from slipway.args import Resolved
from slipway.engine.launch import Address
from slipway.engine.messages import Failed, Message
from slipway.exits import BY_CODE, INTERNAL_ERROR, Exit

logger = logging.getLogger("slipway.api")

ABSENT, LOADING, OPEN = range(3)
"""What a process is to clients: takes no connection, answers that it loads, serves."""
_NUMBERS = (LOADING, 0, 0)
"""Phase, open requests and connections of a process that starts."""
_WIDTH = len(_NUMBERS)
_NUMBER_BYTES = 8
_TOLERANCE = 4
"""Connections that a process may hold more than another."""
_MAX_WORD = 1 << 20


class Membership(msgspec.Struct, frozen=True):
    """What one API process is told. Its descriptors come beside that."""

    arguments: Resolved
    index: int
    """Which of the processes it is, from 0; one that takes the place of another has the same."""
    client_id: int
    """To the engine. Never that of another, gone or not: what a client leaves behind ends late."""
    replaces: bool
    """The others serve already, so it takes no connection before it serves too."""
    engines: list[Address]
    metrics_folder: str


class Obey(Message, frozen=True):
    """Parent to process: the server was sent this signal."""

    number: int


class Opened(Message, frozen=True):
    """Process to parent: it serves. What stands on the terminal when all of them do."""

    warnings: list[str]
    greeting: str


Word = Obey | Opened | Failed
"""`Failed` goes both ways: why the sender ends, and with it the server."""
_decoder: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)


def say(line: socket, word: Word) -> None:
    """Whoever does not listen any more need not know."""
    with suppress(OSError):
        line.send(msgspec.json.encode(word))


def hear(line: socket) -> Word | None:
    """The next word; None where the other has gone. Raises BlockingIOError where nothing came."""
    try:
        word = line.recv(_MAX_WORD)
    except ConnectionResetError:  # it went without hearing our last word; its own are still there
        word = line.recv(_MAX_WORD)
    return _decoder.decode(word) if word else None


def as_failed(cause: Exit) -> Failed:
    code = cause.exit_code
    return Failed(code.code, code.reason, cause.message, cause.hint, cause.argument)


def as_exit(failure: Failed) -> Exit:
    known = BY_CODE.get(failure.code, INTERNAL_ERROR)
    return Exit(known, failure.message, failure.hint, failure.argument)


def show_opening(warnings: Iterable[str], greeting: str) -> None:
    """What who started the server sees when it serves."""
    for warning in warnings:
        logger.warning("%s", warning)
    print(greeting, flush=True)


class Group:
    """What the processes of a server know of each other: three numbers for each, which it alone writes, and
    one that they count together.

    In memory that they share; its parent clears the numbers of one that was killed.
    """

    def __init__(
        self,
        numbers: list[int] | memoryview[int],
        index: int,
        metrics_folder: str | None = None,
        file: int | None = None,
    ) -> None:
        """numbers  three for each process, and the number of requests that have had a place

        file     what holds them, where there are several processes
        """
        self._numbers, self._arrivals = numbers[:-1], numbers[-1:]
        self._file = file
        self._index = index
        self.metrics_folder = metrics_folder
        """Where they sum their metrics; None where there is but one."""

    @classmethod
    def of_one(cls) -> Group:
        return cls([*_NUMBERS, 0], 0)

    @classmethod
    def shared(cls, file: int, index: int, metrics_folder: str) -> Group:
        """As the process of this index sees it, over a file of `group_memory`."""
        memory = mmap.mmap(file, os.fstat(file).st_size)
        return cls(memoryview(memory).cast("q"), index, metrics_folder, file)

    @property
    def alone(self) -> bool:
        """There is but one process."""
        return len(self._numbers) == _WIDTH

    @property
    def complete(self) -> bool:
        """Whichever process a client meets serves it."""
        return LOADING not in self._numbers[::_WIDTH]

    @property
    def num_open(self) -> int:
        """Generating requests in all processes."""
        return sum(self._numbers[1::_WIDTH])

    @property
    def num_connections(self) -> int:
        """Of this process."""
        return self._numbers[_WIDTH * self._index + 2]

    @num_connections.setter
    def num_connections(self, number: int) -> None:
        self._numbers[_WIDTH * self._index + 2] = number

    @property
    def crowded(self) -> bool:
        """Another process had better take the next connection."""
        phases, held = self._numbers[::_WIDTH], self._numbers[2::_WIDTH]
        fewest = min((n for n, phase in zip(held, phases, strict=True) if phase != ABSENT), default=0)
        return phases[self._index] != ABSENT and held[self._index] > fewest + _TOLERANCE

    def set_phase(self, phase: int) -> None:
        self._numbers[_WIDTH * self._index] = phase

    def count(self, change: int) -> None:
        """One request more or less in this process."""
        self._numbers[_WIDTH * self._index + 1] += change

    def next_arrival(self) -> int:
        """The place, from 0, of a request in the order in which they come to the server."""
        with self._lock():
            place = self._arrivals[0]
            self._arrivals[0] = place + 1
        return place

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """No other process is within; the kernel lets go for one that is killed there."""
        if self._file is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def clear(self, index: int) -> None:
        """Forget a process that has gone."""
        for place, number in enumerate((ABSENT, 0, 0), _WIDTH * index):
            self._numbers[place] = number


def group_memory(count: int) -> int:
    """A file without a name that holds what `count` processes share: all of them load, no request came."""
    file = os.memfd_create("slipway-api")
    os.write(file, b"".join(n.to_bytes(_NUMBER_BYTES, "little") for n in (*_NUMBERS * count, 0)))
    return file
