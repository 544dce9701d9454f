"""Heartbeats: what one that has ended looks like."""

from __future__ import annotations

import queue
import socket

from slipway.dist.beats import ENDED, Heartbeats


def test_one_that_ends_with_beats_unread_has_ended() -> None:
    """The connection is reset then, and not closed."""
    lost: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    own, other = socket.socketpair()
    with own, other:
        own.send(b"!")
        other.close()
        beats = Heartbeats({3: own}, lambda *how: lost.put(how))
        assert lost.get(timeout=10) == (3, ENDED)
        beats.close()
