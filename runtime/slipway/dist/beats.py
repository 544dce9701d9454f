"""Heartbeats between the ranks of an engine: a thread of each process, which no step holds up.

A byte each second, over a socket of its own. Who is silent for ten seconds is dead, whatever its process
does; but for a process that stood still itself meanwhile, as one does that is stopped with all others, or
whose machine slept. Before its first byte a process may take longer: it starts, and reads its libraries.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping

BEAT = 1.0
"""Seconds from one to the next."""
SILENCE = 10.0
"""Seconds after which nobody waits any more."""
START = 120.0
"""Seconds for the first beat: libraries of gigabytes come from a cold disk, and a process that ends meanwhile
is found at once."""
ENDED = "ended"
"""How one was lost that closed its end."""


class Heartbeats:
    """Beats to others, and calls `lost` with the first of them that ends or falls silent, in a thread."""

    silence = SILENCE
    start = START

    def __init__(self, others: Mapping[int, socket.socket], lost: Callable[[int, str], None]) -> None:
        """others: by what `lost` is told, a connected socket; it is told how it was lost, too."""
        self._lost = lost
        self._selector = selectors.DefaultSelector()
        self._stopped, self._stop = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ, None)
        for other, connection in others.items():
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, other)
        self._heard = dict.fromkeys(others, time.monotonic())
        self._starting = {*others}
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Whoever ends from now on is missed by nobody."""
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            ready = self._selector.select(max(0.0, due - time.monotonic()))
            if time.monotonic() - due > self.silence / 2:
                self._heard = dict.fromkeys(self._heard, time.monotonic())
            for key, _ in ready:
                if key.data is None:
                    return self._selector.close()
                if how := self._hear(key.fileobj, key.data):  # type: ignore[arg-type]
                    return self._lost(key.data, how)
            now = time.monotonic()
            if now < due:
                continue
            due = now + BEAT
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    self._beat(key.fileobj)  # type: ignore[arg-type]
            for other, heard in self._heard.items():
                if now - heard > (self.start if other in self._starting else self.silence):
                    return self._lost(other, f"was not heard for {now - heard:.0f} s")

    def _hear(self, connection: socket.socket, other: int) -> str:
        """How it was lost; empty: it was not."""
        try:
            heard = connection.recv(1 << 12)
        except BlockingIOError:
            return ""
        except ConnectionResetError:  # it had not read all beats when it ended
            return ENDED
        except OSError as error:
            return f"cannot be reached: {error.strerror}"
        self._heard[other] = time.monotonic()
        self._starting.discard(other)
        return "" if heard else ENDED

    def _beat(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one that takes none is about to be silent, or has ended
            connection.send(b"!")
