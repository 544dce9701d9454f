"""`slipway serve`: resolve the arguments, and serve or say what they resolve to."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from slipway import envs
from slipway.args import ArgumentError, Resolved, resolve
from slipway.args.command_line import help_topic
from slipway.args.errors import NotBuiltError
from slipway.args.schema import SERVE, Schema
from slipway.exits import BAD_ARGUMENTS, NOT_SUPPORTED, write_termination


def run(argv: Sequence[str]) -> int:
    """Exit status 2 is for arguments that cannot be accepted, 3 for those that are not built yet."""
    if os.getpid() == 1:
        # For a container's first process the kernel drops SIGTERM until there is a handler, and the pod
        # would then wait out its grace period. The server replaces this one by a drain.
        signal.signal(signal.SIGTERM, _leave)
    resolved = resolve_or_explain(argv, SERVE)
    if isinstance(resolved, int):
        return resolved
    from slipway.api.server import serve  # not light: after all that can fail fast

    return serve(resolved)


def resolve_or_explain(argv: Sequence[str], schema: Schema, **about: str) -> Resolved | int:
    """What to run, or the exit status where help, a dry run or an error was the answer.

    `about` stands before the arguments in what a dry run prints.
    """
    topic = help_topic(argv)
    if topic is not None:
        from slipway.args.help import show

        return show(schema, topic)
    prefix = f"slipway {schema.command}"
    try:
        resolved = resolve(argv, os.environ, schema=schema)
        envs.read(os.environ)
        if not resolved.dry_run:
            resolved.refuse_unbuilt()
    except (ArgumentError, envs.InvalidEnvironment) as error:
        print(f"{prefix}: error: {error}", file=sys.stderr)
        argument = error.argument if isinstance(error, ArgumentError) else ""
        code = NOT_SUPPORTED.code if isinstance(error, NotBuiltError) else BAD_ARGUMENTS.code
        write_termination(os.environ, code, str(error), argument=argument)
        return code
    for warning in (*resolved.warnings, *envs.check(os.environ)):
        print(f"{prefix}: warning: {warning}", file=sys.stderr)
    if resolved.dry_run:
        print(json.dumps({**about, **resolved.printed()}, ensure_ascii=False))
        return 0
    return resolved


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """No request was admitted yet, so that nothing is left to finish.

    Not by an exception: it may come up inside the import of a C extension, and not each of them looks
    whether its own imports failed. msgspec goes on with a null pointer for `datetime`.
    """
    os._exit(0)
