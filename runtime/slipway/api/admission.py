"""Who is let in: the life of the server as its clients see it, how many requests are open, and how much of
their bodies is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from slipway.api.errors import ApiError
from slipway.api.group import OPEN, Group
from slipway.api.idle_check import IdleCheck
from slipway.api.protocol.answers import Progress
from slipway.engine.client import Client
from slipway.engine.messages import Failed
from slipway.exits import ENGINE_DIED

Phase = Literal["open", "draining", "closed"]

EMBEDS_BYTES_PER_NUMBER = 6
"""Of fp32 in base64, and some more."""
MAX_EMBEDS_BODY = 336 << 20
MAX_BODY_BYTES = 8 << 20
"""A parser holds the interpreter's lock, in a thread as well: this much for some 0.1 s."""
BODY_BYTES_PER_TOKEN = 16
"""What a body may take for each token of the context: an id has up to 7 digits with a comma and a space, a
character outside of Unicode's first plane 12 bytes where it is escaped, and English some 5 bytes a token."""
MAX_BODIES_BYTES = 256 << 20
SHORT_BODY_BYTES = 8 << 10
"""What the event loop itself reads: about 2,000 tokens, tokenized in 1 ms. To a thread and back takes as long
where every core is busy."""
LONG_BODY_BYTES = 1 << 20
"""Work on a longer one takes a thread for a tenth of a second or for several."""


class Admission:
    """`phase` goes from open to draining (a signal: what comes is served, and told to go elsewhere) to
    closed (nothing new), and never back."""

    def __init__(
        self,
        engine: Client,
        *,
        max_concurrency: int | None = None,
        max_queued: int | None = None,
        group: Group | None = None,
        idle_check: IdleCheck | None = None,
    ) -> None:
        self.phase: Phase = "open"
        self.loaded = False
        """The tokenizer and all else that a request needs beside the engine is there."""
        self.num_open = 0
        """Generating requests of this process, from their arrival to the last byte of the answer."""
        self.group = group or Group.of_one()
        self.failure: Failed | None = None
        """Why the server is about to end."""
        self.idle_check = idle_check or IdleCheck(engine, interval=0)
        self._engine = engine
        self._max_concurrency = max_concurrency
        self._max_queued = max_queued
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self) -> None:
        """All is there that a request needs."""
        self.loaded = True
        self.group.set_phase(OPEN)

    @property
    def ready(self) -> bool:
        """A request that arrived now would be served, by whichever process, and others should come."""
        serves = self.loaded and self.failure is None and self._engine.state == "ready"
        serves = serves and not self._engine.asleep and not self.idle_check.overdue
        return self.phase == "open" and serves and self.group.complete

    @property
    def leaving(self) -> bool:
        """The next request had better go to another server."""
        return self.phase != "open" or self.cause is not None

    def check(self) -> None:
        """Raises ApiError 503 where nothing can be served now, with the reason."""
        self.check_engine()
        if self._engine.asleep:
            raise asleep()

    def check_engine(self) -> None:
        """The same for what an engine answers that sleeps, too."""
        if self.phase == "closed":
            raise _unavailable("The server is shutting down.", "shutting_down", 1)
        if (failure := self.cause) is not None:
            raise _unavailable(f"The engine has gone: {failure.message}", "engine_dead", 5)
        if self._engine.state == "loading" or not self.loaded:
            progress = self.progress()
            done = f", {progress.done} of {progress.total}" if progress.total else ""
            message = f"The model is still loading (phase {progress.phase}{done})."
            raise _unavailable(message, "model_loading", 2)

    @property
    def cause(self) -> Failed | None:
        """Why nothing will be served any more; None while it may."""
        if self.failure is None and self._engine.state == "dead":
            return self._engine.failure or Failed(ENGINE_DIED.code, ENGINE_DIED.reason, ENGINE_DIED.message)
        return self.failure

    def progress(self) -> Progress:
        """What /ready shows."""
        if self.ready:
            return Progress(phase="ready")
        if self.cause is not None:
            return Progress(phase="dead")
        if self.phase != "open":
            return Progress(phase="draining", total=self.group.num_open)
        if self._engine.asleep:
            return Progress(phase="asleep")
        if self.idle_check.overdue:
            return Progress(phase="stalled")
        seen = self._engine.progress
        if seen is None:
            return Progress(phase="load")
        return Progress(phase=seen.phase, done=seen.done, total=seen.total)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Holds a place for one request. Raises ApiError 429 or 503 over a limit, 503 before serving."""
        self.check()
        self.group.count(+1)  # before the look at the others: of two that come at once, none is missed
        if (full := self._full(self.group.num_open)) is not None:
            self.group.count(-1)
            raise full
        self.num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            self.group.count(-1)
            if self.num_open == 0:
                self._idle.set()

    def _full(self, num_open: int) -> ApiError | None:
        """The refusal of the request that makes so many open ones, where a limit is below that."""

        def said(limit: str) -> str:
            return f"{num_open - 1} requests are open, as many as {limit} allows; try again in a moment."

        if self._max_concurrency is not None and num_open > self._max_concurrency:
            message, headers = said("--max-concurrency"), {"Retry-After": "1"}
            return ApiError(message, status=429, code="rate_limit_exceeded", headers=headers)
        if self._max_queued is not None and num_open > self._max_queued:
            return _unavailable(said("--max-num-queued-reqs"), "overloaded", 1)
        return None

    async def wait_idle(self) -> None:
        """Until no generating request is open."""
        await self._idle.wait()


class Bodies:
    """Memory for bodies while they are read and checked. Short ones are not counted."""

    def __init__(self) -> None:
        self.largest = MAX_BODY_BYTES
        """Bytes that one may have."""
        self.plain = MAX_BODY_BYTES
        """Bytes of it that may be no base64, of which alone a parser makes nothing but a copy."""
        self.together = MAX_BODIES_BYTES
        """Bytes that all of them may have."""
        self.held = 0

    def make_room(self, max_model_len: int, hidden_size: int = 0) -> None:
        """Let a prompt of the whole context through; also of embeddings, as far as the engine takes them."""
        embeds = min(EMBEDS_BYTES_PER_NUMBER * hidden_size * max_model_len, MAX_EMBEDS_BODY)
        self.plain = max(MAX_BODY_BYTES, BODY_BYTES_PER_TOKEN * max_model_len)
        self.largest = max(self.plain, embeds)
        self.together = max(MAX_BODIES_BYTES, 4 * self.largest)

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """For one body; call what it gives with its length so far. Raises ApiError 413 or 503 there."""
        own = 0

        def grown(length: int) -> None:
            nonlocal own
            if length > self.largest:
                message = (
                    f"The body is larger than {self.largest >> 20} MiB, the most that this server reads."
                )
                raise ApiError(message, status=413, code="request_too_large")
            if length > SHORT_BODY_BYTES:
                if self.held - own + length > self.together:
                    message = (
                        f"Bodies of {self.together >> 20} MiB are being read, as many as this server holds; "
                        "try again in a moment."
                    )
                    raise _unavailable(message, "overloaded", 1)
                self.held += length - own
                own = length

        try:
            yield grown
        finally:
            self.held -= own


def asleep(logged: bool = False) -> ApiError:
    """The answer to a request that an engine would have to wake for; `logged` where its own line says so."""
    message = "The engine sleeps until POST /wake_up wakes it; try again then."
    return _unavailable(message, "asleep", 5, logged)


def _unavailable(message: str, code: str, retry_after: int, logged: bool = False) -> ApiError:
    headers = {"Retry-After": str(retry_after)}
    return ApiError(message, status=503, code=code, headers=headers, logged=logged)
