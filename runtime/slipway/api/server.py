"""`slipway serve`: opens the port, starts the engine, and only then imports what takes time."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from slipway import envs
from slipway.api.listen import listen
from slipway.engine.launch import EngineProcess, EngineThread
from slipway.exits import BAD_ARGUMENTS, INTERNAL_ERROR, Exit, write_termination
from slipway.extras import missing

if TYPE_CHECKING:
    from slipway.api.configure import Arguments


def serve(resolved: Arguments) -> int:
    """Serve until a signal or a failure ends it.

    Returns the exit code; the cause of a failure is on standard error and in the termination log.
    """
    try:
        return _serve(resolved)
    except envs.InvalidEnvironment as error:
        cause = Exit(BAD_ARGUMENTS, str(error))
    except Exit as error:
        cause = error
    except Exception as error:
        cause = missing(error) or _unforeseen(error)
    print(f"slipway: {cause.message}\n  {cause.hint}", file=sys.stderr)
    code = cause.exit_code.code
    write_termination(os.environ, code, cause.message, cause.hint, cause.argument)
    return code


def _unforeseen(error: Exception) -> Exit:
    logging.getLogger("slipway.api").exception("the server failed")
    return Exit(INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _serve(resolved: Arguments) -> int:
    environment = envs.read(os.environ)
    sockets = listen(resolved["host"], resolved["port"])
    in_process = resolved["disable_frontend_multiprocessing"] or not environment.enable_v1_multiprocessing
    engine = EngineThread() if in_process else EngineProcess()
    try:
        # While the process imports its own: this takes as long.
        from slipway.api.configure import api_settings, engine_config
        from slipway.api.logs import configure_logging

        configure_logging(resolved, environment)
        engine.configure(engine_config(resolved, environment))

        from slipway.api.lifecycle import run

        return run(resolved, api_settings(resolved, environment), engine, sockets)
    finally:
        engine.stop(patience=0)
