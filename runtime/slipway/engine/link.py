"""What rank 0 of an engine and another rank say to each other, and the sockets for it.

Plans go one way, with no answer: what is drawn is told within the step, or behind pipeline stages by the rank
that has drawn it. All else is asked and answered.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from slipway.dist.frames import encode_frame, split_frames
from slipway.engine.executor import QUIET_SECONDS
from slipway.engine.messages import AdapterRef, Failed, Message, Part
from slipway.engine.plan import StepOutput, StepPlan

MAX_BYTES = (1 << 32) - 1
"""Of a frame, whose length has four bytes."""


class Step(Message, frozen=True):
    plan: StepPlan
    masks: dict[int, bytes] | None = None
    """As of `plan.Masks`, for the rank that draws."""


class Made(Message, frozen=True):
    """What came of the oldest step of which nothing has come, from the rank that draws for the others."""

    output: StepOutput


class Open(Message, frozen=True):
    """Await the rank of the next stage that is on another host."""


class Reach(Message, frozen=True):
    """Connect to the one of the stage before, which is at this address."""

    address: str


class Load(Message, frozen=True):
    """Read the weights. The answer is how many KV pages there is room for."""


class CountHostPages(Message, frozen=True):
    """The answer is how many pages of preempted requests there is room for in host memory."""


class Allocate(Message, frozen=True):
    """Make so many pages. The answer is how many there are."""

    num_pages: int


class WarmUp(Message, frozen=True):
    pass


class Sleep(Message, frozen=True):
    keep_weights: bool


class Wake(Message, frozen=True):
    part: Part


class ReadAdapter(Message, frozen=True):
    """The answer is the tokens that it adds. Steps go on meanwhile."""

    adapter: AdapterRef
    place: int


Question = Open | Reach | Load | CountHostPages | Allocate | WarmUp | Sleep | Wake | ReadAdapter


class Ask(Message, frozen=True):
    number: int
    question: Question


class Answer(Message, frozen=True):
    number: int
    """Of what was asked; that of a rank that ends is -1."""
    value: int = 0
    failure: Failed | None = None


ToRank = Step | Ask
FromRank = Answer | Made
M = TypeVar("M")


class Link(Generic[M]):
    """One end: sends in any thread, and is iterated in one for what comes, until the other end has gone."""

    def __init__(self, connection: socket.socket, kind: object) -> None:
        self.socket = connection
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._received = bytearray()
        self._sending = threading.Lock()
        self.linger = 0.0
        """Seconds for which it looks for what comes before it sleeps."""
        self.idle: Callable[[], bool] = lambda: False
        """Something useful while nothing comes, some milliseconds of it; False: there is no more."""

    def send(self, message: object) -> None:
        """Raises OSError where the other end has gone, or has taken nothing for long."""
        frame = encode_frame(message, MAX_BYTES)
        with self._sending:
            self.socket.sendall(frame)

    def __iter__(self) -> Iterator[M]:
        """Raises OSError and ValueError where what comes cannot be read."""
        while chunk := self._chunk():
            self._received += chunk
            for frame in split_frames(self._received, MAX_BYTES):
                yield self._decoder.decode(frame)

    def _chunk(self) -> bytes:
        """Empty where the other end has gone."""
        until = time.monotonic() + self.linger
        quiet = until + QUIET_SECONDS
        while time.monotonic() < until or self._nothing_comes(quiet) or self.idle():
            with contextlib.suppress(BlockingIOError):
                return self.socket.recv(1 << 20, socket.MSG_DONTWAIT)
            os.sched_yield()
        return self.socket.recv(1 << 20)

    def _nothing_comes(self, until: float) -> bool:
        """Wait until something comes, or it is so late; False: it was that late already."""
        left = until - time.monotonic()
        if left > 0:
            coming = select.poll()
            coming.register(self.socket, select.POLLIN)
            coming.poll(left * 1000)
        return left > 0
