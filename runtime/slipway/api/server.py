"""`slipway serve`: opens the port, starts the engine, and only then imports what takes time."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slipway import envs
from slipway.api.configure import Arguments, api_settings, balanced_outside, engine_config, local_ranks
from slipway.api.listen import listen
from slipway.args import Resolved
from slipway.begin import begin
from slipway.engine.launch import STOP_SIGNALS, Engine
from slipway.engine.several import started
from slipway.exits import BAD_ARGUMENTS, INTERNAL_ERROR, NOT_SUPPORTED, Exit, write_termination
from slipway.extras import missing


def serve(resolved: Resolved) -> int:
    """Serve until a signal or a failure ends it.

    Returns the exit code; the cause of a failure is on standard error and in the termination log.
    """
    return explained(lambda: _serve(resolved))


def explained(life: Callable[[], int]) -> int:
    """The exit code of a life, or of what ended it, which is said and written down."""
    try:
        return life()
    except Exception as error:
        cause = cause_of(error)
    print(f"slipway: {cause.message}\n  {cause.hint}", file=sys.stderr)
    code = cause.exit_code.code
    write_termination(os.environ, code, cause.message, cause.hint, cause.argument)
    return code


def cause_of(error: Exception) -> Exit:
    """The end that an exception means; the log has the traceback of one that nobody foresaw."""
    if isinstance(error, Exit):
        return error
    if isinstance(error, envs.InvalidEnvironment):
        return Exit(BAD_ARGUMENTS, str(error))
    if (cause := missing(error)) is not None:
        return cause
    logging.getLogger("slipway.api").error("the server failed", exc_info=error)
    return Exit(INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _serve(resolved: Resolved) -> int:
    gc.set_threshold(1 << 20)  # what is made until the server opens mostly stays: lifecycle.py sets it back
    environment = envs.read(os.environ)
    begin(resolved["log_config_file"], environment)
    sockets = listen(resolved["host"], resolved["port"])
    with engines_started(resolved, environment) as engines:
        if resolved["api_server_count"] > 1:
            from slipway.api.supervisor import run
        else:
            from slipway.api.lifecycle import run  # while the engine starts: it takes 0.3 s

        return run(resolved, api_settings(resolved, environment), engines, sockets)


@contextmanager
def engines_started(arguments: Arguments, environment: envs.Environment) -> Iterator[list[Engine]]:
    """Those of this node, which end with the block. The signals that end a server stay blocked.

    Raises Exit where others belong to this server.
    """
    ranks, size = local_ranks(arguments), arguments["data_parallel_size"]
    if len(ranks) < size and not balanced_outside(arguments):
        raise Exit(
            NOT_SUPPORTED,
            f"--data-parallel-size-local {len(ranks)} of --data-parallel-size {size}: engines of other nodes "
            "do not join a server yet.",
            "Give each node a server, by --data-parallel-hybrid-lb, or each engine by --data-parallel-rank, "
            "and balance the servers outside.",
            "data_parallel_size_local",
        )
    config = engine_config(arguments, environment, arguments["log_config_file"])
    # They wait until the event loop takes them: what they raise could come where Python swallows it. Nor does
    # a terminal's Ctrl-C, which is for the whole group, reach the engine's process.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    with started(config, ranks, size, in_process=_in_process(arguments, environment)) as engines:
        yield engines


def _in_process(arguments: Arguments, environment: envs.Environment) -> bool:
    return bool(arguments["disable_frontend_multiprocessing"]) or not environment.enable_v1_multiprocessing
