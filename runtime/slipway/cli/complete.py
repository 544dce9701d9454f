"""`slipway complete`: plain prompts, continued by a running server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator

from slipway.cli.conversation import hold, say
from slipway.cli.remote import ServerError, add_server_arguments, connect, sampling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The server and the one-prompt form."""
    add_server_arguments(parser)
    parser.add_argument("-q", "--quick", metavar="PROMPT", help="send one prompt, print its completion, end")


def run(arguments: argparse.Namespace) -> int:
    """Status 1 where the server cannot be used."""
    try:
        server, model = connect(arguments)
    except ServerError as error:
        print(f"slipway complete: {error}", file=sys.stderr)
        return 1

    def answer(prompt: str) -> Generator[str, None, None]:
        body = {"model": model, "prompt": prompt, **sampling(arguments)}
        for chunk in server.stream("/completions", body):
            for choice in chunk.get("choices") or ():
                yield choice.get("text") or ""

    if arguments.quick is not None:
        return say("complete", answer, arguments.quick)
    return hold("complete", answer)
