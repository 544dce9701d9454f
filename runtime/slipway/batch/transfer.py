"""Files of http(s) URLs: the input comes by GET, the output goes by PUT."""

from __future__ import annotations

import errno
import hashlib
import logging
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

import httpx

from slipway.exits import BAD_ARGUMENTS, NO_NETWORK, NO_SPACE, Exit

MAX_INPUT_BYTES = 16 << 30
"""The most that is fetched; OpenAI takes files of 200 MB."""
PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further attempt."""
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which another attempt may succeed."""
TIMEOUT = httpx.Timeout(60, connect=10)
PIECE = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


def is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def shown(place: str) -> str:
    """A path, or a URL without what may be secret in it: password and query."""
    if not is_url(place):
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def kept_at(url: str, folder: Path) -> Path:
    """Where the output for a URL grows, the same for each new signature in its query."""
    return folder / f"batch-{hashlib.sha256(shown(url).encode()).hexdigest()[:16]}.jsonl"


def fetch(url: str, file: BinaryIO) -> None:
    """Write what the URL has into an empty file. Raises Exit where that is not possible."""

    def attempt() -> None:
        file.seek(0)
        file.truncate()
        with httpx.stream("GET", url, follow_redirects=True, timeout=TIMEOUT) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes(PIECE):
                if file.tell() + len(piece) > MAX_INPUT_BYTES:
                    message = f"{shown(url)} has more than {MAX_INPUT_BYTES >> 30} GiB. Cut it into several."
                    raise Exit(BAD_ARGUMENTS, message, argument="input_file")
                copy(file, piece)

    _tried(attempt, url, "input_file")


def upload(path: Path, url: str) -> None:
    """Send the file. Raises Exit where the server does not take it."""

    def attempt() -> None:
        with path.open("rb") as file:
            size = str(path.stat().st_size)
            answer = httpx.put(url, content=file, headers={"Content-Length": size}, timeout=TIMEOUT)
        answer.raise_for_status()

    _tried(attempt, url, "output_file")


def copy(file: BinaryIO, data: bytes) -> None:
    """Write a piece of the input. Raises Exit as `write` does."""
    what = "the input's copy in the folder for temporary files"
    write(file, data, what, "Free some space there, or name another folder by TMPDIR.")


def write(file: BinaryIO, data: bytes, what: str, hint: str) -> None:
    """Write all of it, and wait where it is for a pipe that is full. Raises Exit where that fails."""
    left = memoryview(data)
    try:
        while left:
            written: int | None = file.write(left)
            if written is None:  # it does not block, as whoever opened the pipe wanted it
                _wait_for_room(file)
            else:
                left = left[written:]
    except OSError as error:
        cause = NO_SPACE if error.errno in FULL else BAD_ARGUMENTS
        raise Exit(cause, f"Cannot write {what}: {error.strerror}.", hint) from None


def _wait_for_room(file: BinaryIO) -> None:
    room = select.poll()
    room.register(file, select.POLLOUT)
    room.poll()


def _tried(attempt: Callable[[], T], url: str, argument: str) -> T:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs whole URLs, with what signs them
    flag = f"--{argument.replace('_', '-')}"
    for pause in (*PAUSES, None):
        try:
            return attempt()
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            message = f"{flag} {shown(url)} was answered {status} {error.response.reason_phrase}."
            if status not in PASSING:
                raise Exit(BAD_ARGUMENTS, message, "Check the URL and its signature.", argument) from None
        except httpx.TransportError as error:
            message = f"{flag} {shown(url)} cannot be reached: {error or type(error).__name__}."
        except (httpx.InvalidURL, httpx.TooManyRedirects, httpx.DecodingError) as error:
            raise Exit(BAD_ARGUMENTS, f"{flag} {shown(url)} cannot be used: {error}.", "", argument) from None
        if pause is not None:
            time.sleep(pause)
    raise Exit(NO_NETWORK, message, "Check the server, DNS, proxy and egress rules.", argument)
