"""What n-gram speculation gains on text that repeats itself, and costs on text that does not. Prints JSON.

    python bench/speculation.py --model DIR [--config JSON] [--rounds 10] [--serve '--dtype bfloat16']

Two servers of one model, with and without drafts, are alive at once and take turns within each round. A ratio
is that of their tokens a second of a stream behind its first token: the median over the rounds, and its 90 %
interval. `repeats 1` writes a phrase of the prompt again, one stream; `plain 1` and `plain 8` draw at
temperature 1 behind random prompts. Both servers must write the same text: a round in which they do not ends
the run. `accepted` is the share of drafts that were accepted in a scenario, `proposed` their number a token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import signal
import statistics
import sys
import urllib.request
from dataclasses import dataclass, replace

from side_by_side import Server, paired, start

from load import Load, events

USUAL = '{"method": "ngram", "num_speculative_tokens": 5}'
PHRASE = 24
SCENARIOS = {
    "repeats 1": Load(1, 1, input_len=192, output_len=128),
    "plain 1": Load(1, 1, input_len=128, output_len=128, sampling={"temperature": 1.0, "seed": 1}),
    "plain 8": Load(8, 8, input_len=128, output_len=128, sampling={"temperature": 1.0, "seed": 1}),
}


@dataclass
class Pass:
    """What the streams of one pass wrote, and the median of their tokens a second."""

    texts: list[str]
    tok_s: float


def prompts(scenario: str, load: Load) -> list[list[int]]:
    """Random ids; where it repeats, a phrase of them again and again."""
    if not scenario.startswith("repeats"):
        return load.prompts()
    rng = random.Random(load.seed)
    phrase = [rng.randrange(100, load.vocab) for _ in range(PHRASE)]
    return [phrase * (load.input_len // PHRASE)]


async def stream(server: Server, prompt: list[int], load: Load) -> tuple[str, float]:
    """A completion's text, and its tokens a second behind the first event."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": load.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    } | load.sampling
    text, clock = "", asyncio.get_running_loop().time
    first, last = (0.0, 0), (0.0, 0)
    async for event in events(server.url, "/v1/completions", body):
        if "error" in event:
            raise SystemExit(f"{server.name}: {event['error']}")
        if event.get("choices"):
            text += event["choices"][0]["text"]
            last = clock(), event["usage"]["completion_tokens"]
            first = first if first[1] else last
    return text, (last[1] - first[1]) / (last[0] - first[0])


async def go(server: Server, scenario: str, load: Load) -> Pass:
    streams = (stream(server, prompt, load) for prompt in prompts(scenario, load))
    texts, rates = zip(*await asyncio.gather(*streams), strict=True)
    return Pass(list(texts), statistics.median(rates))


def counts(server: Server) -> dict[str, float]:
    """The counters of drafts and of tokens."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    samples = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    draft, accepted = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"
    return {
        "proposed": samples[draft],
        "accepted": samples[accepted],
        "tokens": samples["vllm:generation_tokens_total"],
    }


def compare(drafted: Server, plain: Server, scenario: str, rounds: int) -> dict[str, object]:
    """The ratio of tokens a second over the rounds, and what became of the drafts."""
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    before = counts(drafted)
    for number in range(-1, rounds):  # one to warm up
        load = replace(SCENARIOS[scenario], seed=number)
        order = (drafted, plain) if number % 2 else (plain, drafted)
        found = {server.name: asyncio.run(go(server, scenario, load)) for server in order}
        if found[drafted.name].texts != found[plain.name].texts:
            raise SystemExit(f"{scenario}: the text with drafts is another than without, seed {number}")
        if number >= 0:
            ours.append([found[drafted.name].tok_s])
            theirs.append([found[plain.name].tok_s])
    after = counts(drafted)
    new = {name: after[name] - before[name] for name in after}
    ratio, low, high = paired(ours, theirs)
    return {
        "ratio": round(ratio, 3),
        "from": round(low, 3),
        "to": round(high, 3),
        "tok_s": [round(statistics.median(map(statistics.median, one)), 1) for one in (ours, theirs)],
        "accepted": round(new["accepted"] / new["proposed"], 3) if new["proposed"] else None,
        "proposed": round(new["proposed"] / new["tokens"], 3),
    }


def main() -> None:
    plain_help = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain_help)
    parser.add_argument("--model", required=True)
    parser.add_argument("--config", default=USUAL, help=f"--speculative-config of the one; {USUAL}")
    parser.add_argument("--serve", default="", help="further arguments of both servers")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    serve = f"{sys.executable} -m slipway serve {{model}} --port {{port}} {options.serve}"
    # A command is formatted: the braces of the JSON are doubled.
    config = shlex.quote(options.config).replace("{", "{{").replace("}", "}}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end with us
    servers: list[Server] = []
    try:
        servers.append(start("drafted", f"{serve} --speculative-config {config}", options.model))
        servers.append(start("plain", serve, options.model))
        drafted, plain = servers
        names = [name.strip() for name in options.scenarios.split(",")]
        found = {name: compare(drafted, plain, name, options.rounds) for name in names}
        print(json.dumps(found, indent=1))
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
