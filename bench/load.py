"""Load for any OpenAI-compatible server: TTFT, inter-token times, throughput, as JSON and as a plot.

    python bench/load.py --url http://127.0.0.1:8000 --concurrency 8 --input-len 128 --output-len 64

Prompts are random token ids sent as such, so every server computes the same lengths; tokens are counted
from `usage`. The client is one asyncio process over plain sockets: on a small machine it must not take
the cores that it measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class Result:
    """One request. Times in seconds from its own start."""

    first: float | None = None
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    output_tokens: int = 0
    prompt_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class Load:
    """What to send. `rate` is requests a second with Poisson arrivals; infinite sends all at once."""

    num_requests: int
    concurrency: int
    input_len: int
    output_len: int
    rate: float = float("inf")
    shared_prefix: int = 0
    chat: bool = False
    """Whether prompts are written out, number by number, as the only message of a chat."""
    sampling: dict[str, object] = field(default_factory=dict)
    vocab: int = 1000
    seed: int = 0

    def prompts(self) -> list[list[int]]:
        rng = random.Random(self.seed)
        prefix = [rng.randrange(100, self.vocab) for _ in range(self.shared_prefix)]
        own = self.input_len - self.shared_prefix
        tails = ([rng.randrange(100, self.vocab) for _ in range(own)] for _ in range(self.num_requests))
        return [prefix + tail for tail in tails]


async def request(url: str, model: str, prompt: list[int], load: Load) -> Result:
    """Stream one completion, or answer of a chat."""
    result = Result()
    message = {"role": "user", "content": " ".join(map(str, prompt))}
    body = {
        "model": model,
        **({"messages": [message]} if load.chat else {"prompt": prompt}),
        "max_tokens": load.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | load.sampling
    started = time.perf_counter()
    try:
        async for event in events(url, "/v1/chat/completions" if load.chat else "/v1/completions", body):
            now = time.perf_counter() - started
            if "error" in event:
                result.error = json.dumps(event["error"])
            if usage := event.get("usage"):
                result.output_tokens = usage["completion_tokens"]
                result.prompt_tokens = usage["prompt_tokens"]
            if event.get("choices"):
                if result.first is None:
                    result.first = now
                else:
                    result.gaps.append(now - result.last)
                result.last = now
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        result.error = f"{type(error).__name__}: {error}"
    return result


async def events(url: str, path: str, body: dict[str, object]):
    """The `data:` events of a streamed POST, decoded."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80, limit=1 << 22)
    content = json.dumps(body).encode()
    head = (
        f"POST {address.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    try:
        writer.write(head.encode() + content)
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        if b" 200 " not in status:
            raise ValueError(f"{status.decode().strip()}: {(await reader.read(2000)).decode()}")
        async for line in reader:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield json.loads(line[6:])
    finally:
        writer.close()


async def run(url: str, model: str, load: Load) -> dict[str, object]:
    """Send the whole load and summarise it."""
    rng, gate = random.Random(load.seed + 1), asyncio.Semaphore(load.concurrency)

    async def one(prompt: list[int]) -> Result:
        async with gate:
            return await request(url, model, prompt, load)

    started = time.perf_counter()
    tasks = []
    for prompt in load.prompts():
        tasks.append(asyncio.create_task(one(prompt)))
        if load.rate != float("inf"):
            await asyncio.sleep(rng.expovariate(load.rate))
    results = await asyncio.gather(*tasks)
    return summary(results, time.perf_counter() - started)


def summary(results: list[Result], seconds: float) -> dict[str, object]:
    done = [r for r in results if not r.error and r.first is not None]
    gaps = [gap for r in done for gap in r.gaps]
    decode = [(r.output_tokens - 1) / (r.last - r.first) for r in done if r.first and r.last > r.first]
    return {
        "requests": len(results),
        "errors": [r.error for r in results if r.error][:5],
        "seconds": round(seconds, 3),
        "prompt_tokens": sum(r.prompt_tokens for r in done),
        "output_tokens": sum(r.output_tokens for r in done),
        "output_tok_s": round(sum(r.output_tokens for r in done) / seconds, 2),
        "stream_tok_s": round(statistics.median(decode), 2) if decode else None,
        "ttft_s": percentiles([r.first for r in done if r.first is not None]),
        "itl_s": percentiles(gaps),
        "e2e_s": percentiles([r.last for r in done]),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    chosen = {f"p{q}": ordered[min(len(ordered) - 1, int(len(ordered) * q / 100))] for q in (50, 90, 99)}
    named = {"mean": statistics.mean(values)} | chosen | {"max": ordered[-1]}
    return {name: round(value, 5) for name, value in named.items()}


def first_model(url: str) -> str:
    with urllib.request.urlopen(url.rstrip("/") + "/v1/models", timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def plot(results: dict[str, dict[str, object]], path: Path) -> None:
    """Throughput and median TTFT over concurrency, one line a server."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    streams = sorted(results, key=int)
    left.plot([int(s) for s in streams], [results[s]["output_tok_s"] for s in streams], marker="o")
    right.plot([int(s) for s in streams], [results[s]["ttft_s"]["p50"] for s in streams], marker="o")  # type: ignore[index]
    for axes, label in ((left, "output tokens a second"), (right, "median TTFT, seconds")):
        axes.set_xlabel("streams")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--concurrency", default="1,8,32", help="streams; a comma list runs each in turn")
    parser.add_argument("--requests", type=int, help="requests a run; default one for each stream")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--shared-prefix", type=int, default=0, help="tokens that all prompts begin with")
    parser.add_argument("--rate", type=float, default=float("inf"))
    parser.add_argument("--sampling", type=json.loads, default={}, help="JSON merged into each request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="write a PNG")
    arguments = parser.parse_args()
    model = arguments.model or first_model(arguments.url)
    results = {}
    for streams in arguments.concurrency.split(","):
        load = Load(
            num_requests=arguments.requests or int(streams),
            concurrency=int(streams),
            input_len=arguments.input_len,
            output_len=arguments.output_len,
            rate=arguments.rate,
            shared_prefix=arguments.shared_prefix,
            sampling=arguments.sampling,
            seed=arguments.seed,
        )
        results[streams] = asyncio.run(run(arguments.url, model, load))
    print(json.dumps(results, indent=1))
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
