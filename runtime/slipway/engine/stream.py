"""What a client has of one request: its deltas, as they come, and what ends them early."""

from __future__ import annotations

import asyncio

from slipway.engine.messages import Delta, Failed


class EngineDead(Exception):
    """The engine has gone; `failure` says why."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Stream:
    """The deltas of one request. At most one is pending: newer tokens merge into it.

    A reader that is slow, or never comes, costs the memory of its own output and no more.
    """

    def __init__(self, engine: int = 0) -> None:
        """engine  rank of the one that has the request"""
        self.engine = engine
        self._pending: Delta | None = None
        self._dead: EngineDead | None = None
        self._ended = False
        self._news = asyncio.Event()

    def put(self, delta: Delta) -> None:
        if self._pending is None:
            self._pending = delta
        else:
            merge(self._pending, delta)
        self._news.set()

    def fail(self, dead: EngineDead) -> None:
        self._dead = dead
        self._news.set()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        """The news since the last call. Raises EngineDead where no end can come any more."""
        if self._ended:
            raise StopAsyncIteration
        await self._news.wait()
        self._news.clear()
        delta, self._pending = self._pending, None
        if delta is None:
            assert self._dead is not None
            raise self._dead
        if self._dead is not None:
            self._news.set()
        self._ended = delta.finish_reason is not None
        return delta


def merge(earlier: Delta, later: Delta) -> None:
    """Make of `earlier` both, of one request and in this order; takes as long as `later` is."""
    earlier.token_ids += later.token_ids
    if later.logprobs is not None:
        earlier.logprobs = earlier.logprobs or []
        earlier.logprobs += later.logprobs
    earlier.prompt_logprobs = earlier.prompt_logprobs or later.prompt_logprobs
    earlier.num_cached_tokens = earlier.num_cached_tokens or later.num_cached_tokens
    earlier.timing = later.timing or earlier.timing
    earlier.work = later.work or earlier.work
    earlier.finish_reason, earlier.stop_token_id = later.finish_reason, later.stop_token_id
    earlier.pooled = later.pooled or earlier.pooled
    earlier.error, earlier.unfit = later.error, later.unfit
