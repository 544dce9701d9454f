"""Heartbeats: what one that has ended looks like."""

from __future__ import annotations

import queue
import socket
import time

import pytest
from e2e.ground.patience import scaled

from slipway.dist import beats
from slipway.dist.beats import ENDED, Heartbeats


def test_one_that_ends_with_beats_unread_has_ended() -> None:
    """The connection is reset then, and not closed."""
    lost: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    own, other = socket.socketpair()
    with own, other:
        own.send(b"!")
        other.close()
        watching = Heartbeats({3: own}, lambda *how: lost.put(how))
        assert lost.get(timeout=scaled(10)) == (3, ENDED)
        watching.close()


def lost_after(monkeypatch: pytest.MonkeyPatch, first_beats: int, start: float) -> float:
    """Seconds until one that beats so often and then falls silent is given up."""
    monkeypatch.setattr(beats, "BEAT", 0.02)
    monkeypatch.setattr(Heartbeats, "silence", 0.2)
    monkeypatch.setattr(Heartbeats, "start", start)
    lost: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    own, other = socket.socketpair()
    with own, other:
        began = time.monotonic()
        other.send(b"!" * first_beats)
        watching = Heartbeats({3: own}, lambda *how: lost.put(how))
        rank, how = lost.get(timeout=scaled(10))
        watching.close()
    assert rank == 3
    assert how.startswith("was not heard for ")
    return time.monotonic() - began


def test_one_that_starts_may_take_longer_for_its_first_beat_than_between_two(monkeypatch) -> None:
    assert lost_after(monkeypatch, first_beats=0, start=1.0) >= 1.0
    assert lost_after(monkeypatch, first_beats=1, start=60.0) >= 0.2
