"""Who is let in: the life of the server as its clients see it, and how many requests are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from slipway.api.errors import ApiError
from slipway.api.group import OPEN, Group
from slipway.api.protocol.answers import Progress
from slipway.engine.client import EngineClient
from slipway.engine.messages import Failed
from slipway.exits import ENGINE_DIED

Phase = Literal["open", "draining", "closed"]


class Admission:
    """`phase` goes from open to draining (a signal: what comes is served, and told to go elsewhere) to
    closed (nothing new), and never back."""

    def __init__(
        self, engine: EngineClient, *, max_concurrency: int | None = None, group: Group | None = None
    ) -> None:
        self.phase: Phase = "open"
        self.loaded = False
        """The tokenizer and all else that a request needs beside the engine is there."""
        self.num_open = 0
        """Generating requests of this process, from their arrival to the last byte of the answer."""
        self.group = group or Group.of_one()
        self.failure: Failed | None = None
        """Why the server is about to end."""
        self._engine = engine
        self._max_concurrency = max_concurrency
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
        return self.phase == "open" and serves and self.group.complete

    @property
    def leaving(self) -> bool:
        """The next request had better go to another server."""
        return self.phase != "open" or self.cause is not None

    def check(self) -> None:
        """Raises ApiError 503 where nothing can be served now, with the reason."""
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
        """What /ready shows while it is not."""
        if self.cause is not None:
            return Progress(phase="dead")
        if self.phase != "open":
            return Progress(phase="draining", total=self.group.num_open)
        seen = self._engine.progress
        if seen is None:
            return Progress(phase="load")
        return Progress(phase=seen.phase, done=seen.done, total=seen.total)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Holds a place for one request. Raises ApiError 429 over the limit, 503 before serving."""
        self.check()
        self.group.count(+1)  # before the look at the others: of two that come at once, none is missed
        num_open = self.group.num_open
        if self._max_concurrency is not None and num_open > self._max_concurrency:
            self.group.count(-1)
            message = (
                f"{num_open - 1} requests are open, as many as --max-concurrency allows; "
                "try again in a moment."
            )
            raise ApiError(message, status=429, code="rate_limit_exceeded", headers={"Retry-After": "1"})
        self.num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            self.group.count(-1)
            if self.num_open == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Until no generating request is open."""
        await self._idle.wait()


def _unavailable(message: str, code: str, retry_after: int) -> ApiError:
    return ApiError(message, status=503, code=code, headers={"Retry-After": str(retry_after)})
