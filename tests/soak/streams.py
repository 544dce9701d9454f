"""Many impatient clients at once, over plain sockets: some hang up, some never read."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

WORDS = (
    "the",
    "a",
    "station",
    "harbour",
    "ship",
    "tide",
    "water",
    "light",
    "rope",
    "sails",
    "crew",
    "bridge",
)


@dataclass
class Tally:
    """How the requests ended, and what went wrong."""

    ends: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Crowd:
    """`streams` clients at once, each sending one request after another until the time is over."""

    url: str
    streams: int
    seconds: float
    seed: int = 0

    async def run(self) -> Tally:
        tally, end = Tally(), time.monotonic() + self.seconds
        await asyncio.gather(*(self._client(i, end, tally) for i in range(self.streams)))
        return tally

    async def _client(self, index: int, end: float, tally: Tally) -> None:
        rng = random.Random(f"{self.seed}-{index}")
        while time.monotonic() < end:
            try:
                tally.ends[await self._request(rng, reads=index % 10 != 9)] += 1
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                tally.errors.append(f"{type(error).__name__}: {error}")
                return

    async def _request(self, rng: random.Random, *, reads: bool) -> str:
        """One streamed chat. Returns how it ended: done, hung up, or unread."""
        address = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 16)
        body = json.dumps(self._body(rng)).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            if not reads:  # the answer piles up on the server's side, then the client is gone
                await asyncio.sleep(rng.uniform(1, 5))
                return "unread"
            patience = rng.randint(1, 20) if rng.random() < 0.25 else None
            return await self._read(reader, patience)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, patience: int | None) -> str:
        status = await reader.readline()
        if b" 200 " not in status:
            raise ValueError(f"{status.decode().strip()} {(await reader.read(500)).decode(errors='replace')}")
        events = 0
        async for line in reader:
            if b'"error"' in line:
                raise ValueError(line.decode())
            if line.startswith(b"data: [DONE]"):
                return "done"
            events += line.startswith(b"data: ")
            if patience is not None and events > patience:
                return "hung up"
        raise ValueError("the stream ended without [DONE]")

    def _body(self, rng: random.Random) -> dict[str, object]:
        text = " ".join(rng.choices(WORDS, k=rng.choice([3, 20, 100, 400])))
        return {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": rng.choice([1, 8, 32, 96]),
            "temperature": rng.choice([0, 0.8]),
            "stream": True,
        }
