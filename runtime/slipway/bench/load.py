"""A load on a server: each sample sent when its time has come, until all have ended or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from slipway.bench.datasets import Sample
from slipway.bench.measure import Outcome

Ask = Callable[[Sample], Awaitable[Outcome]]


class Load:
    """`outcomes` has what ended, in that order, and `duration` the seconds so far, also after Ctrl-C."""

    def __init__(self, ask: Ask, *, max_concurrency: int | None, on_end: Callable[[], None]) -> None:
        self.outcomes: list[Outcome] = []
        self.duration = 0.0
        self._ask = ask
        self._gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
        self._on_end = on_end

    async def run(self, samples: Sequence[Sample], times: Iterable[float]) -> None:
        """`times` are seconds from the start, one for each sample at least."""
        begun = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as sending:
                for sample, due in zip(samples, times, strict=False):
                    if (early := begun + due - time.perf_counter()) > 0:
                        await asyncio.sleep(early)
                    sending.create_task(self._one(sample))
        finally:
            self.duration = time.perf_counter() - begun

    async def _one(self, sample: Sample) -> None:
        async with self._gate:
            self.outcomes.append(await self._ask(sample))
        self._on_end()


async def until_interrupted(work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` came to its end, and not Ctrl-C or SIGTERM before it."""
    loop = asyncio.get_running_loop()
    working = asyncio.create_task(work)
    stops = (signal.SIGINT, signal.SIGTERM)
    for stop in stops:
        loop.add_signal_handler(stop, working.cancel)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)  # an engine that was started before inherited the block
    try:
        await working
    except asyncio.CancelledError:
        return False
    finally:
        for stop in stops:
            loop.remove_signal_handler(stop)
    return True
