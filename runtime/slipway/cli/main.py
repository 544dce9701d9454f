"""The `slipway` command: finds the subcommand and imports nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from slipway import __version__

if TYPE_CHECKING:
    from slipway.exits import Exit

COMMANDS = {
    "serve": "serve a model behind the OpenAI API",
    "demo": "fetch the demo model and serve it",
    "chat": "chat with a running server",
    "complete": "complete prompts with a running server",
    "fit": "estimate the memory that a model needs, and whether it fits",
    "compile": "compile the CUDA kernels of a model before it is served",
    "fetch": "fetch a model of an S3 bucket into a folder",
    "run": "run a service document as a process on this machine",
    "render": "print what a service document becomes on Kubernetes, podman or Compose",
    "explain": "print what each argument and variable of a service's server is, whence, and what reads it",
    "diff": "tell what a changed service document changes in a cluster, and whether pods restart",
    "args": "list arguments, environment variables and metrics, and what becomes of each",
    "collect-env": "print facts about this machine for a bug report",
    "bench": "measure latency and throughput",
    "run-batch": "answer a file of requests",
}
"""Subcommand → what it is for; its module is `slipway.cli.NAME`."""

OWN_PARSER = ("bench", "compile", "fit", "serve", "run-batch")
"""Subcommands whose arguments are declared: `run(argv)` instead of an argparse parser."""

USAGE = f"usage: slipway [-h] [-v] [--print-schema[=short]] {{{','.join(COMMANDS)}}} ..."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    match words:
        case [] | ["-h" | "--help", *_]:
            print(overview())
            return 0
        case ["-v" | "--version", *_]:
            print(__version__)
            return 0
        case ["--print-schema" | "--print-schema=short" as option]:
            from slipway.args.export import print_schema

            return print_schema(short=option.endswith("=short"))
        case [name, *rest] if name in COMMANDS:
            return _dispatch(name, rest)
    from difflib import get_close_matches

    meant = get_close_matches(words[0], COMMANDS, n=1)
    hint = f" Did you mean {meant[0]}?" if meant else ""
    print(f"{USAGE}\nslipway: error: {words[0]!r} is not a command.{hint}", file=sys.stderr)
    return 2


def overview() -> str:
    """Help of the command itself."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {purpose}" for name, purpose in COMMANDS.items()]
    return "\n".join(
        [
            USAGE,
            "",
            "Serves language models behind the OpenAI API.",
            "",
            "commands:",
            *lines,
            "",
            "options:",
            "  -h, --help      print this",
            "  -v, --version   print the version",
            "  --print-schema  print the declarations of all arguments as JSON; with =short in one line",
            "                  what decides on values, as the images carry it",
            "",
            "`slipway COMMAND --help` shows the options of a command.",
        ]
    )


def _dispatch(name: str, words: list[str]) -> int:
    module = import_module(f"slipway.cli.{name.replace('-', '_')}")
    try:
        if name in OWN_PARSER:
            return int(module.run(words))
        import argparse

        parser = argparse.ArgumentParser(
            prog=f"slipway {name}", description=sentence(COMMANDS[name]), allow_abbrev=False
        )
        module.add_arguments(parser)
        return int(module.run(parser.parse_args(words)))
    except ModuleNotFoundError as error:
        from slipway.extras import missing

        if (cause := missing(error)) is None:
            raise
        return _report(name, cause)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, `head` perhaps, has enough; the flush at exit must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _report(name: str, cause: Exit) -> int:
    """The exit status of a cause, which is on standard error and in the termination log then."""
    from slipway.exits import write_termination

    print(f"slipway {name}: error: {cause.message} {cause.hint}", file=sys.stderr)
    write_termination(os.environ, cause.exit_code.code, cause.message, cause.hint)
    return cause.exit_code.code


def sentence(purpose: str) -> str:
    return purpose[0].upper() + purpose[1:] + "."


if __name__ == "__main__":
    sys.exit(main())
