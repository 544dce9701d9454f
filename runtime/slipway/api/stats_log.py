"""Lines about the engine's work now and then, for whoever watches the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable

from slipway.engine.messages import Speculated, Stats

logger = logging.getLogger("slipway.api.stats")

SECONDS_BETWEEN_LINES = 10.0
SIZES_SHOWN = 16


async def log_lines(line: Callable[[], str | None], interval: float = SECONDS_BETWEEN_LINES) -> None:
    """Log what `line` gives, every `interval` seconds and once more when this is cancelled. Never returns."""
    try:
        while True:
            await asyncio.sleep(interval)
            _log(line())
    finally:  # what came since the last line is not lost
        _log(line())


def _log(text: str | None) -> None:
    if text is not None:
        logger.info("%s", text)


class StatsLog:
    """Sums what the engine tells; a line is written only where it worked since the last."""

    def __init__(self) -> None:
        self._latest: dict[int, Stats] = {}
        """By the engine's rank."""
        self._tokens = 0
        self._queries = 0
        self._hits = 0
        self._drafts = Speculated()
        self._since = time.monotonic()

    def add(self, rank: int, stats: Stats) -> None:
        self._latest[rank] = stats
        self._tokens += sum(stats.num_step_tokens)
        self._queries += stats.prefix_queries
        self._hits += stats.prefix_hits
        if new := stats.speculated:
            self._drafts.add(new.proposed, new.accepted, new.emitted, new.drafts)

    def line(self) -> str | None:
        """What happened since the last call; None where nothing did."""
        latest, now = self._latest.values(), time.monotonic()
        if self._tokens == 0:
            self._since = now
            return None
        seconds = max(now - self._since, 1e-3)
        rate = self._tokens / seconds
        text = (
            f"{sum(one.num_running for one in latest)} running, "
            f"{sum(one.num_waiting for one in latest)} waiting, {rate:.1f} tokens/s computed, "
            f"KV cache {sum(one.cache_usage for one in latest) / len(latest):.1%} full"
        )
        if self._queries:
            text += f", prefix hits {self._hits / self._queries:.1%}"
        if drafts := self._drafts.drafts:
            told, self._drafts = self._drafts, Speculated()
            text += (
                f", drafts: {told.accepted / seconds:.1f} tokens/s accepted of "
                f"{told.proposed / seconds:.1f}, {told.accepted / told.proposed:.1%}, "
                f"{1 + told.accepted / drafts:.2f} tokens each time"
            )
        self._tokens = self._queries = self._hits = 0
        self._since = now
        return text


class BatchSizeLog:
    """Counts steps by the number of tokens that they computed; a line names the most frequent."""

    def __init__(self) -> None:
        self._steps: Counter[int] = Counter()
        self._seconds: defaultdict[int, float] = defaultdict(float)

    def add(self, stats: Stats) -> None:
        for size, seconds in zip(stats.num_step_tokens, stats.step_seconds, strict=True):
            self._steps[size] += 1
            self._seconds[size] += seconds

    def line(self) -> str | None:
        """Of the steps since the last call; None where there were none."""
        if not self._steps:
            return None
        shown = [
            f"{size} × {steps} ({1000 * self._seconds[size] / steps:.1f} ms)"
            for size, steps in self._steps.most_common(SIZES_SHOWN)
        ]
        text = (
            f"steps by tokens × how many (mean time): {', '.join(shown)}"
            f"{', and other sizes' if len(self._steps) > SIZES_SHOWN else ''}"
        )
        self._steps.clear()
        self._seconds.clear()
        return text
