"""What holding output to a grammar costs a running server, beside free output as long. Prints JSON.

    python bench/structured.py --url http://127.0.0.1:8000 [--streams 1 8 32] [--rounds 10]

Free and held passes take turns; a ratio is that of their times a token after the first, in one round. `json`
has a schema without an end, whose keys are forced; `regex` allows any text: nothing is forced, and each token
costs a mask. `first_token_ms` has free requests, those with a new schema and the same once more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import replace

from load import Load, first_model, request

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "size": {"type": "integer", "minimum": 0, "maximum": 9999},
        "colour": {"enum": ["red", "green", "blue"]},
    },
    "required": ["name", "size", "colour"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, object]] = {
    "json": {"guided_json": {"type": "array", "items": ITEM, "minItems": 1000}},
    "regex": {"guided_regex": r"(.|\n)*"},
}


async def seconds_per_token(url: str, model: str, load: Load) -> float:
    """The median over the streams of a pass."""
    results = await asyncio.gather(*(request(url, model, prompt, load) for prompt in load.prompts()))
    failed = [result.error for result in results if result.error]
    if failed:
        raise SystemExit(f"a request failed: {failed[0]}")
    return statistics.median(
        (result.last - (result.first or 0.0)) / (result.output_tokens - 1) for result in results
    )


async def compare(url: str, model: str, form: str, streams: int, rounds: int) -> dict[str, float]:
    """Held over free, by rounds: the median, and the middle half of them."""
    free = Load(streams, streams, input_len=64, output_len=128)
    held = replace(free, sampling=FORMS[form])
    ratios = []
    for number in range(-1, rounds):  # one to warm up
        times = {}
        for load in (free, held) if number % 2 else (held, free):
            times[load is held] = await seconds_per_token(url, model, replace(load, seed=number))
        ratios.append(times[True] / times[False])
    low, median, high = statistics.quantiles(ratios[1:], n=4)
    return {"ratio": round(median, 3), "from": round(low, 3), "to": round(high, 3)}


async def again(url: str, model: str, rounds: int) -> dict[str, float]:
    """Milliseconds to the first token: free, with a schema that is new, and with it once more."""
    load = Load(1, 1, input_len=64, output_len=4)
    (prompt,) = load.prompts()
    await request(url, model, prompt, load)  # from now on a prefix hit
    times: dict[str, list[float]] = {"free": [], "new": [], "known": []}
    for _ in range(rounds):
        fields = ITEM["properties"] | {f"field_{time.time_ns()}": {"type": "null"}}  # type: ignore[operator]
        schema = {"guided_json": ITEM | {"properties": fields}}
        for name, sampling in (("free", {}), ("new", schema), ("known", schema)):
            result = await request(url, model, prompt, replace(load, sampling=sampling))
            times[name].append(1000 * (result.first or 0.0))
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    model = first_model(options.url)
    found: dict[str, object] = {"first_token_ms": asyncio.run(again(options.url, model, options.rounds))}
    for form in FORMS:
        found[form] = {
            streams: asyncio.run(compare(options.url, model, form, streams, options.rounds))
            for streams in options.streams
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
