"""A trace of function calls (VLLM_TRACE_FUNCTION): what each thread of a process was last about."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import tempfile
import threading
import time
from types import CodeType, FrameType

from slipway.exits import BAD_ARGUMENTS, Exit

PACKAGES = ("slipway", "slipway_kernels")
"""Whose functions are written: those of others would bury them."""
MOST_BYTES = 1 << 30
"""Of one process's file, which would fill the disk otherwise."""

log = logging.getLogger("slipway.calls")


def trace_calls() -> None:
    """Write every call and return of this thread, and of those that begin later, to a file from now on.

    Raises Exit where the file cannot be made.
    """
    try:
        file, path = tempfile.mkstemp(prefix=f"slipway-calls-{os.getpid()}-", suffix=".log")
    except OSError as error:
        message = f"VLLM_TRACE_FUNCTION=1 has no folder for its files: {error.strerror}."
        raise Exit(BAD_ARGUMENTS, message, "Name one that can be written by TMPDIR.") from None
    log.warning(
        "VLLM_TRACE_FUNCTION: every call in Slipway is written to %s, up to %d MiB. Each costs about 20 "
        "microseconds, and a request makes thousands: the server is many times slower.",
        path,
        MOST_BYTES >> 20,
    )
    trace = _CallTrace(file)
    threading.setprofile(trace)
    sys.setprofile(trace)


class _CallTrace:
    """Called by Python as functions are entered and left."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._left = MOST_BYTES
        self._names: dict[CodeType, bytes | None] = {}
        """None: of another package."""
        specs = filter(None, map(importlib.util.find_spec, PACKAGES))
        self._folders = tuple(
            f"{place}/" for spec in specs for place in spec.submodule_search_locations or ()
        )

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        if event not in ("call", "return"):
            return  # of C functions
        code = frame.f_code
        if code not in self._names:
            self._names[code] = self._name(code)
        name = self._names[code]
        if name is None:
            return
        line = b"%.6f %d %s %s\n" % (time.time(), threading.get_native_id(), event.encode(), name)
        self._left -= len(line)
        try:
            if self._left < 0:
                raise OSError("it is as long as it may be")
            os.write(self._file, line)  # at once: what hangs or dies is found at the end of the file
        except OSError as error:
            threading.setprofile(None)
            sys.setprofile(None)
            log.warning("The trace of calls ends: %s.", error)

    def _name(self, code: CodeType) -> bytes | None:
        if not code.co_filename.startswith(self._folders):
            return None
        return f"{code.co_qualname} {code.co_filename}:{code.co_firstlineno}".encode()
