"""Whether an engine that has had nothing to do still could: a device may hang where no request notices."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from slipway.engine.client import Client
from slipway.engine.stream import EngineDead

logger = logging.getLogger("slipway.api")

PATIENCE = 5.0
"""Seconds that a step of one token may take before the server is taken out of service: some thousand times
what it takes, and less than people wait."""
LONGEST_SHARE = 1000
"""Of the time, one part in so many may go into these steps."""


class IdleCheck:
    """Has the engine compute one token where its last step was long ago. The look of a probe begins it, so
    that a server which nobody asks does nothing."""

    def __init__(self, engine: Client, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        """interval  seconds without a step after which one is asked for; 0: never"""
        self._engine = engine
        self._interval = interval
        self._clock = clock
        self._took = 0.0
        """Seconds of the last one."""
        self._began: float | None = None
        """When the one under way was asked for."""
        self._task: asyncio.Task[None] | None = None

    @property
    def overdue(self) -> bool:
        """A step that was asked for should have come by now."""
        return self._began is not None and self._clock() - self._began > PATIENCE

    def look(self) -> None:
        """Ask for a step where that is due. Called for each probe of a server that is ready."""
        due = max(self._interval, LONGEST_SHARE * self._took)
        if self._interval and self._began is None and self._engine.idle_seconds > due:
            self._began = self._clock()
            self._task = asyncio.create_task(self._compute())

    async def wait(self) -> None:
        """Until no step is under way that was asked for here."""
        if self._task is not None:
            await asyncio.wait((self._task,))  # whoever gives up waiting does not end it

    async def _compute(self) -> None:
        """Whatever the step gives, also a failure of its own: it has come back."""
        assert self._began is not None
        try:
            await self._engine.compute_one()
        except EngineDead:
            return  # told elsewhere, and for good
        self._took = self._clock() - self._began
        if self.overdue:
            logger.warning("A step of one token took %.1f s: /ready answered 503 meanwhile.", self._took)
        self._began = None
