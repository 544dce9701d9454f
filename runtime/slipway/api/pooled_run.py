"""Prompts on an engine that pools."""

from __future__ import annotations

from slipway.api.generate import Run, engine_gone
from slipway.engine.messages import Pooled
from slipway.engine.stream import EngineDead


class PooledRun(Run):
    """As a Run, and each of its outputs is one answer."""

    async def pooled(self) -> list[Pooled]:
        """What each prompt is pooled to, in their order. Raises ApiError where the engine fails."""
        found: list[Pooled] = []
        try:
            for output in self.outputs:
                async for delta in output.stream:
                    self._take(output, delta)
                    if delta.pooled is not None:
                        found.append(delta.pooled)
        except EngineDead as dead:
            self.error = str(dead)
            raise engine_gone(dead, logged=True) from None
        return found
