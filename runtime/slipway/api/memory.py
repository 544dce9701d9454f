"""What the served model takes of memory: the estimate, and what is taken once the server is ready."""

from __future__ import annotations

import asyncio
import os

from msgspec import UNSET

from slipway.api.daemon import in_daemon
from slipway.api.protocol.answers import ServerMemory
from slipway.engine.client import Client
from slipway.engine.messages import Memory
from slipway.footprint import footprint

READ_SECONDS = 1.0
"""From one reading to the next once the server is ready: an engine goes on touching pages for a while."""
FIRST_READINGS, MOST_READINGS = 3, 20
"""The least number of readings, and the most: a server whose memory still grows is read again."""
GROWS = 1.01
"""More than this from one reading to the next is growth."""


class MemoryReport:
    """Of one server, whichever of its processes answers."""

    def __init__(self, engine: Client, *, processes: int = 1) -> None:
        """processes: that answer HTTP; several have a parent"""
        self._engine = engine
        self._first = os.getpid() if processes == 1 else os.getppid()
        self._measured = 0

    async def measure(self) -> None:
        """Once the server is ready, as soon as its memory has settled."""
        estimated = self._estimated
        if estimated is None:
            return
        if estimated.taken:
            self._measured = estimated.taken
            return
        before = taken = 0
        for reading in range(MOST_READINGS):
            await asyncio.sleep(READ_SECONDS)
            before, taken = taken, await in_daemon(lambda: footprint(self._first))
            if reading + 1 >= FIRST_READINGS and taken <= before * GROWS:
                break
        self._measured = taken

    @property
    def shown(self) -> ServerMemory | None:
        """None: not known yet, or not at all."""
        memory = self._estimated
        if memory is None:
            return None
        return ServerMemory(
            capacity=memory.capacity,
            estimated=memory.estimated,
            at_rest=memory.at_rest,
            measured=self._measured or UNSET,
            kv_tokens=memory.kv_tokens,
            max_model_len=memory.max_model_len,
            short=memory.short or UNSET,
        )

    @property
    def _estimated(self) -> Memory | None:
        told = self._engine.ready or self._engine.progress
        return told.memory if told is not None else None
