"""`slipway bench throughput`: how much an engine computes that is given all requests at once."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass

from slipway.args import Resolved
from slipway.bench import datasets, tokenizers
from slipway.bench.datasets import TOKENS
from slipway.bench.engine import Engine, with_engine
from slipway.bench.latency import write
from slipway.bench.progress import Bar

Request = tuple[list[int], int]
"""Token ids, and the length of the output."""


@dataclass(slots=True)
class Done:
    """What has ended so far."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


def run(arguments: Resolved) -> int:
    """The exit status: 130 after Ctrl-C. Raises Exit and ArgumentError."""
    asked = requests(arguments)
    done = Done()

    async def work(engine: Engine) -> None:
        await measure(engine, asked, done)

    whole = with_engine(arguments, work)
    if not whole:
        print(f"Interrupted: {done.requests} of {len(asked)} requests had ended.", file=sys.stderr)
    if done.requests:
        figures = summary(done)
        print(
            f"Throughput: {figures['requests_per_second']:.2f} requests/s, "
            f"{figures['tokens_per_second']:.2f} total tokens/s, "
            f"{figures['output_tokens_per_second']:.2f} output tokens/s"
        )
        print(f"Total num prompt tokens:  {done.input_tokens}")
        print(f"Total num output tokens:  {done.output_tokens}")
        write(arguments["output_json"], figures)
    return 0 if whole else 130


def requests(arguments: Resolved) -> list[Request]:
    """Raises ArgumentError where the dataset or its tokenizer cannot be had."""
    encode = tokenizers.of_model(arguments.values)
    rng = random.Random(arguments["seed"])
    made = datasets.samples(arguments.values, rng, TOKENS, lambda text: len(encode(text)))
    return [
        (encode(sample.prompt) if isinstance(sample.prompt, str) else sample.prompt, sample.output_len)
        for sample in made
    ]


async def measure(engine: Engine, asked: list[Request], done: Done) -> None:
    begun = time.perf_counter()

    async def one(prompt: list[int], output_len: int) -> None:
        # Random ids are those of a usual vocabulary, which this one may be smaller than.
        made = await engine.generate([token % engine.ready.vocab_size for token in prompt], output_len)
        done.requests += 1
        done.input_tokens += len(prompt)
        done.output_tokens += made
        done.seconds = time.perf_counter() - begun
        bar.step()

    with Bar(len(asked), "requests") as bar:
        await asyncio.gather(*(one(prompt, output_len) for prompt, output_len in asked))


def summary(done: Done) -> dict[str, float]:
    """Under the keys of vLLM's result files, and the output's part beside."""
    tokens = done.input_tokens + done.output_tokens
    return {
        "elapsed_time": done.seconds,
        "num_requests": done.requests,
        "total_num_tokens": tokens,
        "requests_per_second": done.requests / done.seconds,
        "tokens_per_second": tokens / done.seconds,
        "total_input_tokens": done.input_tokens,
        "total_output_tokens": done.output_tokens,
        "output_tokens_per_second": done.output_tokens / done.seconds,
    }
