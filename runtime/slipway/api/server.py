"""`slipway serve`: opens the port, starts the engine, and only then imports what takes time."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from slipway import envs
from slipway.api.configure import Arguments, api_settings, balanced_outside, engine_config, local_ranks
from slipway.api.listen import listen, listening_at
from slipway.args import Resolved
from slipway.begin import begin
from slipway.dist.trust import read_key
from slipway.engine.launch import Launched
from slipway.engine.several import started
from slipway.exits import BAD_ARGUMENTS, INTERNAL_ERROR, Exit, write_termination
from slipway.extras import missing
from slipway.processes import STOP_SIGNALS

if TYPE_CHECKING:
    from slipway.engine.tunnel import Meeting

RPC_PORT = 29550
"""At which engines of other nodes come, where nothing else is said."""


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
    cause.tell()
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
    if resolved["headless"] and resolved["data_parallel_size"] == 1:
        from slipway.engine.node import run_node

        return run_node(engine_config(resolved, environment, resolved["log_config_file"]))
    if resolved["headless"]:
        from slipway.api import headless

        with engines_started(resolved, environment) as engines:
            key = read_key(resolved["cluster_key_file"])
            return headless.run(resolved["data_parallel_size"], key, engines, head(resolved))
    with _sockets(resolved) as sockets, engines_started(resolved, environment) as engines:
        if resolved["api_server_count"] > 1:
            from slipway.api.supervisor import run
        else:
            from slipway.api.lifecycle import run  # while the engine starts: it takes 0.3 s

        return run(resolved, api_settings(resolved, environment), engines, sockets)


@contextmanager
def _sockets(arguments: Arguments) -> Iterator[list[socket]]:
    """Those that listen, until they are given to whom serves on them. Raises Exit."""
    if arguments["uds"] is None:
        yield listen(arguments["host"], arguments["port"])
    else:
        with listening_at(Path(arguments["uds"])) as sockets:
            yield sockets


@contextmanager
def engines_started(arguments: Arguments, environment: envs.Environment) -> Iterator[list[Launched]]:
    """Those of this node, and as many of others as are to come, which end with the block. The signals that
    end a server stay blocked. Raises Exit."""
    ranks, size = local_ranks(arguments), arguments["data_parallel_size"]
    outside = balanced_outside(arguments)
    alone = size == 1 or (outside and len(ranks) == 1)
    config = engine_config(
        arguments, environment, arguments["log_config_file"], arguments["api_server_count"]
    )
    # They wait until the event loop takes them: what they raise could come where Python swallows it. Nor does
    # a terminal's Ctrl-C, which is for the whole group, reach the engine's process.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    in_process = _in_process(arguments, environment)
    with ExitStack() as ending:
        engines: list[Launched] = []
        if arguments["data_parallel_backend"] == "ray":
            from slipway.api.rayed_engines import RayedEngines

            rayed = RayedEngines(config, size, environment)
            ending.callback(rayed.close)
            if (ranks := rayed.here) != range(size):
                engines += rayed.meeting(head(arguments)[1]).engines
        elif len(ranks) < size and not outside and not arguments["headless"]:
            meeting = _meeting(arguments, range(ranks.stop, size))
            ending.callback(meeting.close)
            engines += meeting.engines
        here = started(config, ranks, size, alone=alone, in_process=in_process)
        yield [*ending.enter_context(here), *engines]


def head(arguments: Arguments) -> tuple[str, int]:
    """Where engines of other nodes come."""
    return (
        arguments["data_parallel_address"] or "127.0.0.1",
        arguments["data_parallel_rpc_port"] or RPC_PORT,
    )


def _meeting(arguments: Arguments, ranks: range) -> Meeting:
    """Of engines of other nodes with this server. Raises Exit."""
    from slipway.engine.tunnel import Meeting

    key, size = read_key(arguments["cluster_key_file"]), arguments["data_parallel_size"]
    return Meeting.at(head(arguments), key, ranks, size, "data_parallel_address")


def _in_process(arguments: Arguments, environment: envs.Environment) -> bool:
    return bool(arguments["disable_frontend_multiprocessing"]) or not environment.enable_v1_multiprocessing
