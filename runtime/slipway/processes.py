"""Processes that a server starts: what they are told, and what ends them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What ends a server. The API blocks them before it starts an engine, whose process inherits that."""
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, also in the middle of a long step."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_module(module: str, config: object, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """`python -m MODULE CONFIG DESCRIPTORS…`, all of them inherited; the first gives `config` to `told`."""
    config_read, config_write = os.pipe()
    inherited = (config_read, *descriptors)
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, inherited)], pass_fds=inherited, stdin=subprocess.DEVNULL
    )
    os.close(config_read)
    with os.fdopen(config_write, "wb") as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(written(config))
    return process


def written(config: object) -> bytes:
    """For `told` in another process.

    By `json`, which has words for bytes outside of UTF-8, as Python holds them in keys and paths.
    """
    return json.dumps(msgspec.to_builtins(config)).encode()


def told(file: int, kind: type[T]) -> T:
    """What was `written`, from an inherited descriptor."""
    with os.fdopen(file, "rb") as pipe:
        return msgspec.convert(json.load(pipe), kind)
