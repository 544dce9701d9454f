"""`slipway bench latency`: how long one batch of requests takes."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from slipway.api.configure import Arguments
from slipway.args import ArgumentError
from slipway.bench.engine import Engine, with_engine
from slipway.bench.measure import percentile
from slipway.bench.progress import Bar

SHARES = (10, 25, 50, 75, 90, 99)
"""The percentiles that are told."""


def run(arguments: Arguments) -> int:
    """The exit status: 130 after Ctrl-C. Raises Exit and ArgumentError."""
    latencies: list[float] = []

    async def work(engine: Engine) -> None:
        await measure(engine, arguments, latencies)

    whole = with_engine(arguments, work)
    if not whole:
        asked = arguments["num_iters"]
        print(f"Interrupted: {len(latencies)} of {asked} batches had ended.", file=sys.stderr)
    if latencies:
        figures = summary(latencies)
        print(f"Avg latency: {figures['avg_latency']} seconds")
        for share, value in figures["percentiles"].items():
            print(f"{share}% percentile latency: {value} seconds")
        write(arguments["output_json"], figures)
    return 0 if whole else 130


async def measure(engine: Engine, arguments: Arguments, latencies: list[float]) -> None:
    """Each batch has prompts of its own, so that the prefix cache spares none of them."""
    rng = random.Random(arguments["seed"])
    vocabulary = range(engine.ready.vocab_size)
    warmups, iterations = arguments["num_iters_warmup"], arguments["num_iters"]
    size, input_len, output_len = arguments["batch_size"], arguments["input_len"], arguments["output_len"]
    with Bar(warmups + iterations, "batches") as bar:
        for number in range(warmups + iterations):
            prompts = [rng.choices(vocabulary, k=input_len) for _ in range(size)]
            begun = time.perf_counter()
            await asyncio.gather(*(engine.generate(prompt, output_len) for prompt in prompts))
            if number >= warmups:
                latencies.append(time.perf_counter() - begun)
            bar.step()


def summary(latencies: list[float]) -> dict[str, Any]:
    """Under the keys of vLLM's result files; seconds."""
    ordered = sorted(latencies)
    return {
        "avg_latency": statistics.fmean(latencies),
        "latencies": latencies,
        "percentiles": {str(share): percentile(ordered, share) for share in SHARES},
    }


def write(path: str | None, figures: dict[str, Any]) -> None:
    """To the file, where one was asked for. Raises ArgumentError where it cannot be written."""
    if path is None:
        return
    try:
        Path(path).expanduser().write_text(json.dumps(figures, indent=4) + "\n", "utf-8")
    except OSError as error:
        raise ArgumentError(f"--output-json {path} cannot be written: {error.strerror}.") from None
