"""`slipway bench`: the command lines are complete; the measurements are not built."""

from __future__ import annotations

import argparse
import json
import math
import sys

DATASETS = ("random", "sharegpt", "prefix-repetition")
MOST = 2**31 - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each measurement."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="{latency,serve,throughput}")

    latency = _add(kinds, "latency", "Latency of one batch of requests.")
    latency.add_argument("--batch-size", type=_count, default=8, help="requests in the batch (8)")
    latency.add_argument("--input-len", type=_count, default=32, help="prompt tokens (32)")
    latency.add_argument("--output-len", type=_count, default=128, help="output tokens (128)")

    serve = _add(kinds, "serve", "Throughput and latency of a running server.")
    serve.add_argument("--host", default="127.0.0.1", help="server to load (127.0.0.1)")
    serve.add_argument("--port", type=_port, default=8000, help="its port (8000)")
    serve.add_argument("--model", help="model to ask for (the first that the server lists)")
    _add_prompts(serve)
    serve.add_argument(
        "--request-rate",
        type=_rate,
        default=math.inf,
        help="requests a second, arriving at random; inf sends all at once (inf)",
    )
    serve.add_argument("--max-concurrency", type=_count, help="most requests in flight (no limit)")

    _add_prompts(_add(kinds, "throughput", "Throughput of the engine without a server."))


def run(arguments: argparse.Namespace) -> int:
    """Exit status 2 for every real run."""
    if arguments.dry_run:
        options = {name: value for name, value in vars(arguments).items() if name != "dry_run"}
        if options.get("request_rate") == math.inf:
            options["request_rate"] = "inf"  # JSON has no infinity
        print(json.dumps(options))
        return 0
    print(
        f"slipway bench {arguments.kind}: error: not supported yet. "
        "The folder bench/ of the repository measures a running server.",
        file=sys.stderr,
    )
    return 2


def _add(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser], name: str, purpose: str
) -> argparse.ArgumentParser:
    parser = kinds.add_parser(name, help=purpose, description=purpose, allow_abbrev=False)
    parser.add_argument("--dry-run", action="store_true", help="check the options and print them")
    return parser


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset-name", choices=DATASETS, default="random", help="where prompts come from (random)"
    )
    parser.add_argument("--num-prompts", type=_count, default=1000, help="requests (1000)")


def _count(text: str) -> int:
    return _integer(text, MOST)


def _port(text: str) -> int:
    return _integer(text, 65535)


def _integer(text: str, most: int) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else 0
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 to {most}")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, nor inf")
    return value
