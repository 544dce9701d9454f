"""`python -m slipway.api CONFIG LINE MEMORY SOCKETS…`: inherited descriptors, see `supervisor.Supervisor`."""

from __future__ import annotations

import gc
import signal
import sys
from socket import socket

from slipway.api.group import Membership, as_failed, say
from slipway.api.server import cause_of
from slipway.processes import STOP_SIGNALS, die_with_parent, told


def main() -> int:
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the parent says what to obey
    gc.set_threshold(1 << 20)  # as server.py does
    config_fd, line_fd, memory, *listening = map(int, sys.argv[1:])
    membership = told(config_fd, Membership)
    line = socket(fileno=line_fd)
    try:
        from slipway.api.process import run  # what it misses is said to the parent

        return run(membership, line, memory, [socket(fileno=file) for file in listening])
    except Exception as error:
        cause = cause_of(error)
        line.setblocking(True)
        say(line, as_failed(cause))
        return cause.exit_code.code


if __name__ == "__main__":
    sys.exit(main())
