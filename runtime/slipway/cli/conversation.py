"""The loop of `chat` and `complete`: a line from the terminal, its answer as it comes, the next line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import closing, suppress

from slipway.bench.printable import printable
from slipway.cli.remote import ServerError

Answer = Callable[[str], Generator[str, None, None]]
"""From what was typed to the pieces of what the server says."""


def hold(command: str, answer: Answer) -> int:
    """Answers line after line. Ctrl-C ends an answer, Ctrl-D or the end of the input ends it all."""
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  # gives input() line editing and a history
        print("Ctrl-C ends an answer, Ctrl-D the session.")
    while True:
        try:
            line = input("> " if at_terminal else "")
        except EOFError:
            if at_terminal:
                print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if line.strip():
            status = say(command, answer, line)
            if status and not at_terminal:
                return status


def say(command: str, answer: Answer, line: str) -> int:
    """Prints one answer as it comes; status 1 where the server failed, 130 where Ctrl-C ended it."""
    status = 0
    try:
        with closing(answer(line)) as pieces:
            for piece in pieces:
                print(printable(piece), end="", flush=True)
    except KeyboardInterrupt:
        status = 130
    except ServerError as error:
        print(f"slipway {command}: {error}", file=sys.stderr)
        return 1
    print(flush=True)
    return status
