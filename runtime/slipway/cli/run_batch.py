"""`slipway run-batch`: resolve the arguments, and answer a file of requests."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from slipway.args import Resolved
from slipway.args.schema import RUN_BATCH
from slipway.cli.serve import resolve_or_explain
from slipway.exits import INTERRUPTED


def run(argv: Sequence[str]) -> int:
    """Exit status 2 is for arguments that cannot be accepted."""
    if os.getpid() == 1:
        # As for a server: the kernel drops SIGTERM until a container's first process has a handler.
        signal.signal(signal.SIGTERM, _leave)
    resolved = resolve_or_explain(argv, RUN_BATCH)
    if not isinstance(resolved, Resolved):
        return resolved
    from slipway.batch.run import run_batch  # not light: after all that can fail fast

    return run_batch(resolved)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing is answered yet. Not by an exception, as in `slipway.cli.serve`."""
    os._exit(INTERRUPTED.code)
