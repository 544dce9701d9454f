"""`slipway bench`: measurements of a running server, and of an engine without one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slipway.args import ArgumentError, Resolved, resolve
from slipway.args.groups.bench import DEMO
from slipway.args.schema import BENCH
from slipway.args.values import near
from slipway.cli.remote import ServerError, environments_key
from slipway.cli.serve import resolve_or_explain
from slipway.exits import BAD_ARGUMENTS, BY_REASON, Exit

if TYPE_CHECKING:
    from slipway.bench.http import Address

KINDS = {
    "latency": "how long one batch of requests takes on an engine without a server",
    "serve": "throughput and latencies of a running server, any that speaks OpenAI's API",
    "throughput": "how much an engine without a server computes that is given all requests at once",
}
USAGE = f"usage: slipway bench [-h] {{{','.join(KINDS)}}} ..."


def run(argv: Sequence[str]) -> int:
    """The exit status of the measurement, 2 for arguments that cannot be accepted."""
    match list(argv):
        case ["-h" | "--help", *_]:
            print(overview())
            return 0
        case [kind, *words] if kind in KINDS:
            return _measure(kind, words)
        case [other, *_]:
            said = f"{other!r} is not a measurement.{near(other, KINDS)}"
        case _:
            said = f"which one? {', '.join(KINDS)}."
    print(f"{USAGE}\nslipway bench: error: {said}", file=sys.stderr)
    return BAD_ARGUMENTS.code


def overview() -> str:
    width = max(map(len, KINDS))
    lines = [f"  {kind:<{width}}  {purpose}" for kind, purpose in KINDS.items()]
    closing = "`slipway bench MEASUREMENT --help` shows the options of one."
    return "\n".join(
        [USAGE, "", "Measures latency and throughput.", "", "measurements:", *lines, "", closing]
    )


def _measure(kind: str, words: list[str]) -> int:
    resolved = resolve_or_explain(words, BENCH[kind], kind=kind)
    if isinstance(resolved, int):
        return resolved
    try:
        if kind == "serve":
            from slipway.bench import serve

            return serve.run(resolved.values, _key)
        if resolved["model"] == DEMO:
            resolved = _of_demo_model(kind, words)
        if kind == "latency":
            from slipway.bench import latency

            return latency.run(resolved)
        from slipway.bench import throughput

        return throughput.run(resolved)
    except ArgumentError as error:
        print(f"slipway bench {kind}: error: {error}", file=sys.stderr)
        return BAD_ARGUMENTS.code
    except Exit as cause:
        print(f"slipway bench {kind}: error: {cause.message} {cause.hint}".rstrip(), file=sys.stderr)
        return cause.exit_code.code


def _key(address: Address) -> str | None:
    """Of the environment. Raises ArgumentError for what is none."""
    try:
        return environments_key(str(address))
    except ServerError as error:
        raise ArgumentError(str(error)) from None


def _of_demo_model(kind: str, words: list[str]) -> Resolved:
    """The arguments with the demo model's file. Raises Exit where it cannot be fetched."""
    import msgspec  # noqa: F401  # a package that an engine misses is told of before the download

    from slipway.load.demo import fetch
    from slipway.load.errors import LoadError

    try:
        return resolve([*words, f"--model={fetch()}"], os.environ, schema=BENCH[kind])
    except LoadError as error:
        raise Exit(BY_REASON[error.code], error.message, error.hint) from None
