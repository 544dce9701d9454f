"""Folders for as long as a process lives: for its sockets, and for files that its children share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress

from slipway.exits import BAD_ARGUMENTS, Exit

BASE = "VLLM_RPC_BASE_PATH"
LONGEST_SOCKET = 107
"""Bytes that the path of a Unix socket has at most on Linux."""
OTHERS = ("/tmp", "/var/tmp", "/dev/shm")
"""Where a folder may be, beside that for temporary files. A container with a read-only root has the last."""
_MOUNT = "A container with a read-only root gets a folder by `docker run --tmpfs /tmp`."

Folder = tempfile.TemporaryDirectory[str]


def socket_folder(longest: str) -> Folder:
    """A folder for its owner alone, removed at this process's exit at the latest, in which sockets can be.

    longest  the name of a socket there that is as long as any
    Raises Exit where there is no place for it.
    """
    hint = f"Name one by {BASE} that can be written and has a short path."
    if base := os.environ.get(BASE):
        base = os.path.expanduser(base)
        with suppress(OSError):  # the reason is told below
            os.makedirs(base, exist_ok=True)
        lacking = f"{BASE} names no folder for the sockets of the server"
        return _made("slipway-", [base], lacking, hint, longest)
    lacking = "There is no folder for the sockets of the server"
    return _made("slipway-", _places(), lacking, f"{hint} {_MOUNT}", longest)


def private_folder(prefix: str) -> Folder:
    """The same for files. Raises Exit where there is no place for it."""
    hint = f"Name one by TMPDIR that can be written. {_MOUNT}"
    return _made(prefix, _places(), "There is no folder for temporary files", hint)


def _places() -> Iterator[str]:
    with suppress(FileNotFoundError):  # it would be one of the others, or the current folder
        yield tempfile.gettempdir()
    yield from OTHERS


def _made(prefix: str, places: Iterable[str], lacking: str, hint: str, longest: str = "") -> Folder:
    reasons: dict[str, str] = {}
    for place in places:
        length = len(os.fsencode(os.path.join(place, f"{prefix}xxxxxxxx", longest)))
        if longest and length > LONGEST_SOCKET:
            reasons[place] = f"a socket's path has at most {LONGEST_SOCKET} bytes, there {length}"
            continue
        try:
            return tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
        except OSError as error:
            reasons[place] = error.strerror or str(error)
    said = "; ".join(f"{place}: {reason}" for place, reason in reasons.items())
    raise Exit(BAD_ARGUMENTS, f"{lacking}. {said}.", hint)
