"""Work that may take minutes, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_daemon(work: Callable[[], T]) -> T:
    """Run what may take minutes, such as a download, in a thread that does not hold up the exit."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run_work() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run_work, daemon=True).start()
    return await asyncio.wrap_future(outcome)
