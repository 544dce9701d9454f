"""Clients that stream without a pause: `python -m e2e.load URL MODEL CLIENTS`, a JSON line for each request.

Each client keeps its own connection alive and never tries again, so that whatever goes wrong on the way is
a line with an error. It runs until its standard input is closed; streams under way are then finished.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import openai

from e2e.ground.patience import scaled

PATIENCE = httpx.Timeout(scaled(180), connect=scaled(5))
LENGTHS = (8, 48)
"""The fewest and the most tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request and its end. Times are seconds since the epoch."""

    id: str
    began: float
    ended: float
    wanted: int
    received: int
    """Chunks with text or a reason to finish; of a whole stream at least one."""
    finished: str | None
    """The reason to finish that the client was told, None of a stream that ended without one."""
    tokens: int | None
    """What the server says that it made: the last chunk of a whole stream."""
    error: str | None

    @property
    def whole(self) -> bool:
        return self.error is None and self.finished == "length" and self.tokens == self.wanted

    @property
    def looks_whole(self) -> bool:
        """Whether a client would take it for an answer."""
        return self.error is None and self.finished is not None


def read(line: str) -> Request:
    fields: Mapping[str, Any] = json.loads(line)
    return Request(**fields)


async def _stream(client: openai.AsyncOpenAI, model: str, wanted: int) -> Request:
    name = uuid.uuid4().hex
    began, received, finished, tokens, error = time.time(), 0, None, None, None
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"Tell story number {random.randrange(1000)}."}],
            max_tokens=wanted,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-Request-Id": name},
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            for choice in chunk.choices:
                received += 1
                finished = choice.finish_reason or finished
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
    except (openai.APIError, httpx.HTTPError) as failure:
        error = f"{type(failure).__name__}: {failure} ({failure.__cause__!r})"
    return Request(name, began, time.time(), wanted, received, finished, tokens, error)


async def _client(url: str, model: str, ended: asyncio.Event) -> None:
    # Without the environment: a proxy of the machine is none of this network's.
    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as http:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)
        while not ended.is_set():
            request = await _stream(client, model, random.randint(*LENGTHS))
            print(json.dumps(asdict(request)), flush=True)
            if request.error:
                await asyncio.sleep(0.1)  # a client that fails at once would be the only one that is heard


async def _run(url: str, model: str, clients: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)))
    await asyncio.gather(*(_client(url, model, ended) for _ in range(clients)))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
