"""An engine without a server: started as `slipway serve` starts its own, asked in token ids."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

from slipway import envs
from slipway.api.configure import Arguments, engine_config
from slipway.bench.load import until_interrupted
from slipway.engine.balanced import connect
from slipway.engine.client import Client
from slipway.engine.messages import AddRequest, Ready
from slipway.engine.params import SamplingParams
from slipway.engine.several import started
from slipway.engine.stream import EngineDead
from slipway.exits import BAD_ARGUMENTS, BY_CODE, INTERNAL_ERROR, Exit
from slipway.logs import configure_logging
from slipway.processes import STOP_SIGNALS

Work = Callable[["Engine"], Awaitable[None]]


class Engine:
    """One that is ready. `ready` has what only the model could tell."""

    def __init__(self, client: Client, ready: Ready) -> None:
        self.ready = ready
        self._client = client
        self._count = 0

    async def generate(self, prompt: list[int], output_len: int) -> int:
        """The tokens that it made: `output_len`, for no token ends an output early.

        Raises Exit where the prompt does not fit or the request fails.
        """
        longest = self.ready.max_model_len
        if len(prompt) + output_len > longest:
            raise Exit(
                BAD_ARGUMENTS,
                f"A prompt of {len(prompt)} tokens with an output of {output_len} is longer than the "
                f"{longest} tokens that this engine takes.",
                "Ask for less, or raise --max-model-len where the model allows it.",
            )
        self._count += 1
        params = SamplingParams(output_len, seed=self._count)
        stream = self._client.submit(AddRequest(str(self._count), prompt, params))
        made = 0
        async for delta in stream:
            made += len(delta.token_ids)
            if delta.finish_reason == "error":
                raise Exit(INTERNAL_ERROR, f"A request failed: {delta.error}", "The log may say more.")
        return made


def with_engine(arguments: Arguments, work: Work) -> bool:
    """Start an engine, do the work on it and end it; whether that came to its end, and not Ctrl-C.

    Raises Exit where the engine does not start, or ends.
    """
    environment = envs.read(os.environ)
    config = engine_config(arguments, environment)
    # A terminal's Ctrl-C is for the whole group; the engines inherit that it is not for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    configure_logging(None, environment)
    size, in_process = arguments["data_parallel_size"], not environment.enable_v1_multiprocessing
    with started(config, range(size), size, alone=size == 1, in_process=in_process) as engines:
        addresses = [engine.address for engine in engines]
        client = connect(addresses, engines, by_prefix=arguments["enable_prefix_caching"])
        try:
            return asyncio.run(until_interrupted(_live(client, work)))
        except EngineDead as dead:
            failure = dead.failure
            code = BY_CODE.get(failure.code, INTERNAL_ERROR)
            raise Exit(code, failure.message, failure.hint, failure.argument) from None


async def _live(client: Client, work: Work) -> None:
    reading = asyncio.create_task(client.run(on_stats=lambda rank, stats: None))
    try:
        ready = await client.wait_ready()
        for warning in ready.warnings:
            print(f"slipway bench: warning: {warning}", file=sys.stderr)
        await work(Engine(client, ready))
    finally:
        reading.cancel()
