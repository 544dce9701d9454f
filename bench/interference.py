"""What a long prompt costs the streams that run beside it. Prints JSON.

    python bench/interference.py --url http://127.0.0.1:8000 [--input-len 4096]

A stream runs; a long prompt arrives and is computed in chunks of the token budget beside it. The longest gap
to allow is one step of that budget at the prompt's full length. That step is measured alone: all but the
last chunk of another prompt is put into the prefix cache, then the whole of it is asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time

from load import Load, events, first_model, percentiles, request


async def gaps_beside(url: str, model: str, load: Load, stream_tokens: int) -> tuple[list[float], float]:
    """Gaps of a running stream while the load's prompt is computed, and that prompt's TTFT."""
    times: list[float] = []
    started = asyncio.Event()

    async def stream() -> None:
        body = {
            "model": model,
            "prompt": "Once upon a time, in a village by the river,",  # words: each token is a chunk
            "max_tokens": stream_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        async for event in events(url, "/v1/completions", body):
            if event.get("choices"):
                times.append(time.perf_counter())
                if len(times) == 20:
                    started.set()

    running = asyncio.create_task(stream())
    await started.wait()
    begun = time.perf_counter()
    result = await request(url, model, load.prompts()[0], load)
    ended = time.perf_counter()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    during = [b - a for a, b in itertools.pairwise(times) if b > begun and a < ended]
    return during, result.first or 0.0


async def measure(url: str, model: str, input_len: int, budget: int) -> dict[str, object]:
    load = Load(1, 1, input_len, 1, seed=int(time.time()))
    during, ttft = await gaps_beside(url, model, load, stream_tokens=400)
    steps = []
    for seed in range(1, 4):
        other = Load(1, 1, input_len, 1, seed=load.seed + seed).prompts()[0]
        await request(url, model, other[: input_len - budget], load)
        steps.append((await request(url, model, other, load)).first or 0.0)
    step = statistics.median(steps)
    return {
        "gaps_s": percentiles(during),
        "ttft_s": round(ttft, 3),
        "last_step_alone_s": round(step, 4),
        "p99_over_step": round(percentiles(during)["p99"] / step, 3),
    }


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--input-len", type=int, default=4096)
    parser.add_argument("--budget", type=int, default=256, help="the server's --max-num-batched-tokens")
    arguments = parser.parse_args()
    model = first_model(arguments.url)
    result = asyncio.run(measure(arguments.url, model, arguments.input_len, arguments.budget))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
