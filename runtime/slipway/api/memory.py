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

SETTLED_SECONDS = 3.0
"""After the server has become ready: an engine at rest goes on touching pages of its pool for a while."""


class MemoryReport:
    """Of one server, whichever of its processes answers."""

    def __init__(self, engine: Client, *, processes: int = 1) -> None:
        """processes: that answer HTTP; several have a parent"""
        self._engine = engine
        self._first = os.getpid() if processes == 1 else os.getppid()
        self._measured = 0

    async def measure(self) -> None:
        """Once the server is ready."""
        estimated = self._estimated
        if estimated is None:
            return
        if estimated.taken:
            self._measured = estimated.taken
            return
        await asyncio.sleep(SETTLED_SECONDS)
        self._measured = await in_daemon(lambda: footprint(self._first))

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
