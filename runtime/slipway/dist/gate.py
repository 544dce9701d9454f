"""A port between hosts: who passes the challenge is handed on, and everyone else refused and logged."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Generator
from typing import Protocol

from slipway.dist.trust import PATIENCE, Acceptor, Distrusted, Greeting

log = logging.getLogger("slipway.dist")

MOST_HALF_OPEN = 32
"""Callers in the midst of the challenge. One more, and the one that is at it longest goes."""
_FULL = 0.1
"""Seconds between attempts to accept where this process has no descriptor left."""


class Door(Protocol):
    """What callers come for. All is called in the gate's thread."""

    def refusal(self, greeting: Greeting) -> str:
        """Why one that has the key may not stay; empty: it may."""

    def take(self, greeting: Greeting, connection: socket.socket) -> None:
        """It stays. What is sent next is the caller's."""


class _HalfOpen:
    """A caller in the midst of the challenge."""

    def __init__(self, connection: socket.socket, peer: str, acceptor: Acceptor, end: float) -> None:
        self.connection, self.peer, self.acceptor, self.end = connection, peer, acceptor, end
        self._turn: Generator[int, bytes, Greeting] = acceptor.proven(connection)
        self._wanted = next(self._turn)
        self._received = b""

    def receive(self) -> Greeting | None:
        """What it has proved, once it has. Raises Distrusted and OSError."""
        with contextlib.suppress(BlockingIOError):
            while True:
                while len(self._received) < self._wanted:
                    chunk = self.connection.recv(self._wanted - len(self._received))
                    if not chunk:
                        raise Distrusted("it hung up in the midst of the challenge")
                    self._received += chunk
                received, self._received = self._received, b""
                try:
                    self._wanted = self._turn.send(received)
                except StopIteration as proven:
                    greeting: Greeting = proven.value
                    return greeting
        return None


class Gate:
    """Listens until it is closed, in a thread of its own."""

    def __init__(self, listener: socket.socket, key: bytes, door: Door, patience: float = PATIENCE) -> None:
        """patience: seconds that a challenge may take"""
        self._listener = listener
        self._key = key
        self._door = door
        self._patience = patience
        self._half_open: dict[socket.socket, _HalfOpen] = {}
        """Oldest first."""
        self._closed, self._close = socket.socketpair()
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for watched in (listener, self._closed):
            self._selector.register(watched, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody comes any more; whoever has stays."""
        self._close.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(self._until_due()):
                if key.fileobj is self._closed:
                    return self._end()
                if key.fileobj is self._listener:
                    self._accept()
                elif caller := self._half_open.get(key.fileobj):  # type: ignore[call-overload]
                    self._hear(caller)
            now = time.monotonic()
            for caller in [caller for caller in self._half_open.values() if caller.end <= now]:
                self._refuse(caller, f"it took longer than {self._patience:g} s for the challenge")

    def _until_due(self) -> float | None:
        oldest = next(iter(self._half_open.values()), None)
        return None if oldest is None else max(0.0, oldest.end - time.monotonic())

    def _end(self) -> None:
        for caller in self._half_open.values():
            caller.connection.close()
        for ours in (self._selector, self._listener, self._closed):
            ours.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("nobody can be accepted: %s", error.strerror)
            return time.sleep(_FULL)
        if len(self._half_open) >= MOST_HALF_OPEN:
            oldest = next(iter(self._half_open.values()))
            self._refuse(oldest, f"{MOST_HALF_OPEN} others are in the midst of the challenge")
        connection.setblocking(False)
        peer = f"{address[0]}:{address[1]}"
        end = time.monotonic() + self._patience
        self._half_open[connection] = _HalfOpen(connection, peer, Acceptor(self._key), end)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, caller: _HalfOpen) -> None:
        try:
            greeting = caller.receive()
            if greeting is None:
                return
            if refusal := self._door.refusal(greeting):
                return self._refuse(caller, refusal, greeting)
            caller.acceptor.answer(caller.connection, greeting)
        except Distrusted as error:
            return self._refuse(caller, str(error))
        except OSError as error:
            return self._refuse(caller, f"it cannot be reached: {error.strerror}")
        self._forget(caller)
        caller.connection.setblocking(True)
        self._door.take(greeting, caller.connection)

    def _refuse(self, caller: _HalfOpen, why: str, greeting: Greeting | None = None) -> None:
        """One that has the key, whose greeting is given, is told why."""
        log.warning("refused %s on port %d: %s", caller.peer, self._listener.getsockname()[1], why)
        self._forget(caller)
        with contextlib.suppress(OSError), caller.connection:
            if greeting is not None:
                caller.acceptor.answer(caller.connection, greeting, why)

    def _forget(self, caller: _HalfOpen) -> None:
        self._selector.unregister(caller.connection)
        del self._half_open[caller.connection]
