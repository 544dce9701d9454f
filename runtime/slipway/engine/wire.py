"""The engine's end of its sockets to the API."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import NamedTuple

import msgspec

from slipway.dist.frames import MAX_FRAME_BYTES, encode_frame, split_frames
from slipway.engine.messages import PROTOCOL_VERSION, FromClient, FromEngine, Hello

MAX_UNSENT_BYTES = 4 * MAX_FRAME_BYTES
"""A client that lets this much pile up has stopped reading and is dropped."""

_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)


class Inbound(NamedTuple):
    client_id: int
    message: FromClient | None
    """None: the client has gone."""


class _Client:
    """One connected API process."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.id: int | None = None
        self.received = bytearray()
        self.unsent = bytearray()

    def flush(self) -> None:
        """Send what the socket takes now. Raises OSError when the client has gone."""
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]


class Hub:
    """The engine's end of all its sockets, served from the core's own thread without ever blocking it.

    `parent` is the read end of a pipe that nobody writes: it ends when the launching process does.
    """

    def __init__(self, listener: socket.socket, parent: int | None = None) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        if parent is not None:
            self._selector.register(parent, selectors.EVENT_READ)
        self._parent = parent
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._clients: list[_Client] = []
        self._greeting: bytes | None = None
        self.closed = False
        """The launching process has gone, or `close` was called."""

    def poll(self, timeout: float | None) -> list[Inbound]:
        """What has arrived; waits up to `timeout` seconds for something, forever where it is None."""
        inbound: list[Inbound] = []
        for key, events in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fd == self._parent:
                self.closed = True
            elif key.fileobj is self._woken:
                self._woken.recv(1 << 10)
            else:
                self._serve(key.data, events, inbound)
        return inbound

    def wake(self) -> None:
        """Have `poll` return, from any thread."""
        with contextlib.suppress(OSError):  # closed, or full of wakes
            self._waker.send(b"!")

    def broadcast(self, message: FromEngine) -> None:
        """Send to every client, and until the next broadcast to each that connects."""
        self._greeting = encode_frame(message)
        for client in self._clients:
            self._send(client, self._greeting)

    def send(self, client_id: int, message: FromEngine) -> None:
        for client in self._clients:
            if client.id == client_id:
                self._send(client, encode_frame(message))
                return

    def wait_flushed(self, seconds: float) -> None:
        """Give the clients, or the first one to come, this long to take what is unsent and to hang up.

        Nothing more is sent, and what they send is read: one that writes its Hello to a closed socket would
        fail before it has read why. Those that have connected and were not met yet are clients, too; who
        comes later is refused.
        """
        end = time.monotonic() + seconds
        self._selector.unregister(self._listener)
        self._listener.settimeout(seconds)
        if not self._clients:
            self._accept()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.setblocking(False)
        while self._accept():
            pass
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.socket.settimeout(max(0.0, end - time.monotonic()))
                client.socket.sendall(client.unsent)
                client.socket.shutdown(socket.SHUT_WR)
                while client.socket.recv(1 << 16):
                    client.socket.settimeout(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        self.closed = True
        for client in self._clients:
            client.socket.close()
        self._clients.clear()
        self._selector.close()
        self._listener.close()
        self._waker.close()
        self._woken.close()

    def _accept(self) -> bool:
        """Whether one had come."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return False
        client = _Client(connection)
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        if self._greeting is not None:
            self._send(client, self._greeting)
        return True

    def _serve(self, client: _Client, events: int, inbound: list[Inbound]) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                client.flush()
                self._watch(client)
            if events & selectors.EVENT_READ:
                self._receive(client, inbound)
        except (OSError, ValueError, msgspec.DecodeError):
            self._drop(client, inbound)

    def _receive(self, client: _Client, inbound: list[Inbound]) -> None:
        chunk = client.socket.recv(1 << 20)
        if not chunk:
            raise ConnectionResetError
        client.received += chunk
        for frame in split_frames(client.received):
            message = _from_client.decode(frame)
            if client.id is None:
                if not isinstance(message, Hello) or message.protocol_version != PROTOCOL_VERSION:
                    raise ValueError("the first frame must be a Hello of this protocol version")
                client.id = message.client_id
            else:
                inbound.append(Inbound(client.id, message))

    def _send(self, client: _Client, frame: bytes) -> None:
        client.unsent += frame
        try:
            client.flush()
            if len(client.unsent) > MAX_UNSENT_BYTES:
                raise ConnectionResetError
        except OSError:
            # `poll` sees the closed end and reports the client gone.
            client.unsent.clear()
            with contextlib.suppress(OSError):
                client.socket.shutdown(socket.SHUT_RDWR)
        self._watch(client)

    def _watch(self, client: _Client) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        if self._selector.get_key(client.socket).events != events:
            self._selector.modify(client.socket, events, client)

    def _drop(self, client: _Client, inbound: list[Inbound]) -> None:
        self._selector.unregister(client.socket)
        client.socket.close()
        self._clients.remove(client)
        if client.id is not None:
            inbound.append(Inbound(client.id, None))
