"""The engine as the process before it lives through it: opening, silence, death."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import NoReturn

from slipway.api.daemon import in_daemon
from slipway.api.frontend import Frontend
from slipway.api.group import as_exit
from slipway.api.texts import Texts, read_texts
from slipway.engine.client import Client
from slipway.engine.messages import Ready
from slipway.engine.stream import EngineDead
from slipway.exits import ENGINE_STALLED, LOAD_STALLED, Exit

WATCH_SECONDS = 1.0

logger = logging.getLogger("slipway.api")


async def opened(front: Frontend) -> tuple[Texts, Ready]:
    """Load what the API needs, wait for the engine, begin to admit requests."""
    texts, folders = await in_daemon(lambda: (read_texts(front.settings), front.adapters.find_modules()))
    try:
        ready = await front.engine.wait_ready()
        await front.adapters.load_modules(folders, texts, ready)
    except EngineDead:
        await asyncio.Event().wait()  # `mourn` tells why
    front.open(texts, ready)
    gc.freeze()  # tokenizer and modules stay: a full collection over them would hold up every stream
    gc.set_threshold(700)  # as Python's own is: server.py raised it for the start
    return texts, ready


def warnings_of(front: Frontend, texts: Texts, ready: Ready) -> list[str]:
    """What of the model is not as asked, and that the log keeps what users write."""
    warnings = [*(texts.tokenizer.warnings if texts.tokenizer else ()), *ready.warnings]
    if front.log.has_prompts_whole:
        warnings.append(
            "Prompts are logged in full, as --enable-log-requests says; --max-log-len N cuts them."
        )
    if front.settings.enable_sleep_mode and not front.settings.dev_mode:
        warnings.append(
            "--enable-sleep-mode: /sleep and /wake_up answer in development mode alone; set "
            "VLLM_SERVER_DEV_MODE=1 for it, where nobody but you reaches the server."
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
            raise Exit(ENGINE_STALLED, f"{engine.quietest.capitalize()} has been silent for {age:.0f} s.")


async def mourn(engine: Client) -> NoReturn:
    """Raises Exit with the engine's own words when it has ended."""
    raise as_exit(await engine.wait_dead())
