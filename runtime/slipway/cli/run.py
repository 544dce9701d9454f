"""`slipway run`: the cluster's service document as a process of this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys

from slipway import exits
from slipway.cli.documents import ANYTHING, add_document, read_document
from slipway.service import InvalidService, LocalStart, local_start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The document, and what differs on this machine."""
    add_document(parser)
    parser.add_argument("--model", metavar="MODEL", help="name or folder to serve in place of spec.model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, help="port to listen on (default: spec.service.port)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what the arguments resolve to and start nothing"
    )


def run(arguments: argparse.Namespace) -> int:
    """Becomes the server. Status 2 where the document cannot be accepted or run here."""
    try:
        start = local_start(
            read_document(arguments.file, ANYTHING),
            os.environ,
            model=arguments.model,
            host=arguments.host,
            port=arguments.port,
        )
    except InvalidService as error:
        print(f"slipway run: error: {error}", file=sys.stderr)
        return 2
    for warning in start.warnings:
        print(f"slipway run: warning: {warning}", file=sys.stderr)
    if not arguments.dry_run:
        import slipway.api.server  # noqa: F401  # a package that it misses is told of before the download

        if status := _fetched(start):
            return status
    words = [*start.argv, *(["--dry-run"] if arguments.dry_run else [])]
    print(f"slipway run: {shlex.join(['slipway', *words])}", file=sys.stderr, flush=True)
    # The process is replaced and no child started, so that signals and the exit status are its own.
    os.execve(sys.executable, [sys.executable, "-m", "slipway", *words], start.environ)


def _fetched(start: LocalStart) -> int:
    """Has the model here, where the server does not fetch it; an exit status where that fails."""
    if start.before:
        print(f"slipway run: {shlex.join(['slipway', *start.before])}", file=sys.stderr, flush=True)
        words = [sys.executable, "-m", "slipway", *start.before]
        return subprocess.run(words, env=start.environ, check=False).returncode
    if start.demo:
        from slipway.load.demo import fetch
        from slipway.load.errors import LoadError

        try:
            fetch()
        except LoadError as error:
            print(f"slipway run: error: {error}", file=sys.stderr)
            return exits.BY_REASON[error.code].code
    return 0
