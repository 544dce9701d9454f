"""How far a batch is, on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any

DRAW_SECONDS = 0.2
LINE_SECONDS = 10.0
BAR_WIDTH = 30
CLEAR = "\r\x1b[K"


class Progress:
    """Counts of this run. `before` lines were answered by earlier ones."""

    def __init__(self, total: int, before: int) -> None:
        self.total = total
        self.before = before
        self.answered = 0
        self.failed = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._since = time.monotonic()
        self._terminal = sys.stderr.isatty()

    @property
    def done(self) -> int:
        return self.before + self.answered

    def begin(self) -> None:
        """The engine is there: rates count from now."""
        self._since = time.monotonic()

    def add(self, status: int, body: dict[str, Any]) -> None:
        self.answered += 1
        self.failed += status >= 400
        usage = body.get("usage") or {}
        self.prompt_tokens += usage.get("prompt_tokens") or usage.get("input_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or usage.get("output_tokens") or 0

    def line(self) -> str:
        elapsed = max(time.monotonic() - self._since, 1e-3)
        text = f"{self.done:,} of {self.total:,} lines"
        if self.failed:
            text += f", {self.failed:,} failed"
        text += f", {self.completion_tokens / elapsed:,.1f} tokens/s"
        if self.answered:
            text += f", {_duration((self.total - self.done) * elapsed / self.answered)} left"
        return text

    def summary(self) -> str:
        """What this run has done."""
        elapsed = max(time.monotonic() - self._since, 1e-3)
        before = f", {self.before:,} were answered before" if self.before else ""
        return (
            f"{self.answered:,} of {self.total:,} lines answered in {_duration(elapsed)}{before}; "
            f"{self.failed:,} failed; {self.prompt_tokens:,} tokens read, "
            f"{self.completion_tokens:,} written, {self.completion_tokens / elapsed:,.1f} tokens/s."
        )

    async def show(self) -> None:
        """Never returns; cancelled, it leaves the terminal clean."""
        if not self._terminal:
            while True:
                await asyncio.sleep(LINE_SECONDS)
                print(self.line(), file=sys.stderr, flush=True)
        handlers = logging.getLogger().handlers
        for handler in handlers:
            handler.addFilter(_clear)  # what is logged stands where the bar was
        try:
            while True:
                filled = BAR_WIDTH * self.done // max(self.total, 1)
                bar = "█" * filled + "░" * (BAR_WIDTH - filled)
                print(f"{CLEAR}{bar} {self.line()}", end="", file=sys.stderr, flush=True)
                await asyncio.sleep(DRAW_SECONDS)
        finally:
            for handler in handlers:
                handler.removeFilter(_clear)
            print(CLEAR, end="", file=sys.stderr, flush=True)


def _clear(record: logging.LogRecord) -> bool:
    print(CLEAR, end="", file=sys.stderr, flush=True)
    return True


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
