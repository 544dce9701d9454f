"""The engine as the process before it lives through it: opening, silence, death."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NoReturn, TypeVar

from slipway.api.frontend import Frontend
from slipway.api.group import as_exit
from slipway.api.model import Texts, read_texts
from slipway.engine.client import EngineClient, EngineDead
from slipway.engine.messages import Ready
from slipway.exits import ENGINE_STALLED, LOAD_STALLED, Exit

WATCH_SECONDS = 1.0

T = TypeVar("T")
logger = logging.getLogger("slipway.api")


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


async def opened(front: Frontend) -> tuple[Texts, Ready]:
    """Load what the API needs, wait for the engine, begin to admit requests."""
    texts = await in_daemon(lambda: read_texts(front.settings))
    try:
        ready = await front.engine.wait_ready()
    except EngineDead:
        await asyncio.Event().wait()  # `mourn` tells why
    front.open(texts, ready)
    gc.freeze()  # tokenizer and modules stay: a full collection over them would hold up every stream
    gc.set_threshold(700)  # as Python's own is: server.py raised it for the start
    return texts, ready


def warnings_of(front: Frontend, texts: Texts, ready: Ready) -> list[str]:
    """What of the model is not as asked, and that the log keeps what users write."""
    warnings = [*(texts.tokenizer.warnings if texts.tokenizer else ()), *ready.warnings]
    if front.logs_prompts_whole:
        warnings.append(
            "Prompts are logged in full: --disable-log-requests logs none of them, --max-log-len N cuts them."
        )
    return warnings


async def watch(front: Frontend) -> NoReturn:
    """Raises Exit where the engine is silent for too long."""
    engine, settings = front.engine, front.settings
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        age = engine.heartbeat_age
        if engine.state == "loading" and age > settings.load_timeout:
            raise Exit(LOAD_STALLED, f"Loading made no progress for {age:.0f} s.")
        if engine.state == "ready" and age > settings.step_timeout:
            raise Exit(ENGINE_STALLED, f"The engine has been silent for {age:.0f} s.")


async def mourn(engine: EngineClient) -> NoReturn:
    """Raises Exit with the engine's own words when it has ended."""
    raise as_exit(await engine.wait_dead())
