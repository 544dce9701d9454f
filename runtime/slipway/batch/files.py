"""Where a batch comes from and where its answers grow, so that a run can go on after any end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
import sys
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy

from slipway.batch.lines import ANSWER_HEAD, Line, answered_line, custom_id_of, read_lines
from slipway.batch.transfer import PIECE, copy, fetch, is_url, kept_at, shown, upload, write
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.load.demo import cache_folder

SYNC_SECONDS = 1.0
BEGIN_ANEW = "Begin anew: standard output and pipes cannot be continued."


class Input:
    """The lines of a file, a URL or standard input, which can be read again.

    Of each line 16 bytes stay in memory: its digest, and while they are compared its name's.
    """

    def __init__(self, place: str) -> None:
        """Raises Exit where a file cannot be opened."""
        self.shown = "standard input" if place == "-" else shown(place)
        self.num_requests = 0
        self.digests = array("Q", [0])
        """By the lines' numbers, 0 for what is blank."""
        self._repeated: frozenset[int] = frozenset()
        """Hashes of the names that more than one line may have."""
        self._url = place if is_url(place) else None
        try:
            if self._url is not None:
                self._file = _scratch()
            else:
                self._file = sys.stdin.buffer if place == "-" else Path(place).expanduser().open("rb")
        except OSError as error:
            message = f"--input-file {self.shown} cannot be read: {error.strerror}."
            raise Exit(BAD_ARGUMENTS, message, "Check the path.", "input_file") from None

    @property
    def status(self) -> os.stat_result:
        return os.fstat(self._file.fileno())

    def lines(self, answered: bytearray) -> Iterator[tuple[Line, bool]]:
        """Each line that is not answered, and whether its custom_id is also that of an earlier one."""
        met: set[str] = set()
        for line in self._lines():
            if line.number >= len(self.digests):
                return  # it grows while it is read: the next run takes what is new
            name = custom_id_of(line) if self._repeated else None
            repeats = name in met
            if name is not None and hash(name) in self._repeated:
                met.add(name)
            if not answered[line.number]:
                yield line, repeats

    def read(self) -> None:
        """Fetch it, where it is not a file already, and see which lines there are. Raises Exit."""
        if self._url is not None:
            fetch(self._url, self._file)
        elif not stat.S_ISREG(self.status.st_mode):  # a pipe can be read only once
            pipe, self._file = self._file, _scratch()
            for piece in iter(lambda: pipe.read(PIECE), b""):
                copy(self._file, piece)
        hashes = array("q")
        for line in self._lines():
            self.digests.extend([0] * (line.number - len(self.digests)))
            self.digests.append(line.digest)
            self.num_requests += 1
            if (name := custom_id_of(line)) is not None:
                hashes.append(hash(name))
        in_order = numpy.sort(numpy.frombuffer(hashes, numpy.int64))
        self._repeated = frozenset(in_order[1:][in_order[1:] == in_order[:-1]].tolist())

    def _lines(self) -> Iterator[Line]:
        self._file.seek(0)
        return read_lines(self._file)


def _scratch() -> BinaryIO:
    """Gone with the process, however that ends. Raises Exit where it has no place."""
    try:
        return tempfile.TemporaryFile(prefix="slipway-")
    except OSError as error:
        message = f"The input needs a copy, and there is no folder for temporary files: {error.strerror}."
        raise Exit(BAD_ARGUMENTS, message, "Name one that can be written by TMPDIR.", "input_file") from None


@dataclass(slots=True)
class Written:
    """What a file of answers has, by the input's lines."""

    answered: bytearray
    count: int = 0


class Output:
    """The file to which answers are appended, each a whole line, and what becomes of it in the end."""

    def __init__(self, place: str, folder: str | None) -> None:
        """Raises Exit where it cannot be written, or another run writes it."""
        self.shown = "standard output" if place == "-" else shown(place)
        self._url = place if is_url(place) else None
        try:
            if place == "-":
                self.path: Path | None = None
                self._file: BinaryIO = os.fdopen(os.dup(1), "wb", buffering=0)
            else:
                self.path = self._place(place, folder)
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
                self._file = os.fdopen(os.open(self.path, flags, 0o666), "r+b", buffering=0)
        except OSError as error:
            self._refuse(f"cannot be written: {error.strerror}")
        self.resumable = self.path is not None and stat.S_ISREG(self.status.st_mode)
        self._end = self.status.st_size
        self._failure: Exit | None = None
        if self.resumable:
            self._lock()

    @property
    def status(self) -> os.stat_result:
        return os.fstat(self._file.fileno())

    def resume(self, source: Input) -> Written:
        """What earlier runs have answered. Cuts off a line that a sudden end left torn.

        Raises Exit where the file is not of this input, or the input has changed.
        """
        written = Written(bytearray(len(source.digests)))
        if not self.resumable:
            return written
        end = 0
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            for number, text in enumerate(reader, 1):
                if not text.endswith(b"\n"):
                    if not (text.startswith(ANSWER_HEAD) or ANSWER_HEAD.startswith(text)):
                        self._refuse(f"has in line {number} what no batch wrote")
                    os.ftruncate(self._file.fileno(), end)
                    break
                end += len(text)
                self._note(written, text, number, source)
        self._end = end
        return written

    def append(self, line: bytes) -> None:
        """To the kernel, which keeps it whatever becomes of this process. Blocks where it is for a pipe.

        Raises Exit for a full disk, and from then on for every line: none may stand behind a torn one.
        """
        if self._failure is not None:
            raise self._failure
        hint = "The same command goes on from what is there." if self.resumable else BEGIN_ANEW
        try:
            write(self._file, line, str(self.path or self.shown), hint)
        except Exit as failure:
            self._failure = failure
            if self.resumable:
                with contextlib.suppress(OSError):  # else the next run cuts it off
                    os.ftruncate(self._file.fileno(), self._end)
            raise
        self._end += len(line)

    async def keep_synced(self) -> None:
        """To the disk, again and again: this is what is left when the machine fails."""
        while self.resumable:
            await asyncio.sleep(SYNC_SECONDS)
            await asyncio.to_thread(os.fsync, self._file.fileno())

    def close(self) -> None:
        if self.resumable:
            os.fsync(self._file.fileno())
        self._file.close()

    def deliver(self) -> None:
        """Upload what is for a URL, before `close` lets another run have the file.

        Raises Exit where that fails; the file is kept then.
        """
        if self._url is None or self.path is None:
            return
        try:
            upload(self.path, self._url)
        except Exit as error:
            hint = f"The answers are in {self.path}; the same command uploads them. {error.hint}"
            raise Exit(error.exit_code, error.message, hint, error.argument) from None
        self.path.unlink(missing_ok=True)  # on a file system without locks another run may have been first

    def _place(self, place: str, folder: str | None) -> Path:
        if self._url is None:
            return Path(place).expanduser()
        kept = Path(folder).expanduser() if folder else cache_folder() / "batch"
        kept.mkdir(parents=True, exist_ok=True)
        return kept_at(place, kept)

    def _lock(self) -> None:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse("is being written by another run")
            if not self.status.st_nlink:  # opened before the other run removed what it had uploaded
                self._refuse("was being written by another run, which has just delivered it")

    def _note(self, written: Written, text: bytes, number: int, source: Input) -> None:
        found = answered_line(text)
        if found is None:
            self._refuse(f"has in line {number} what no batch wrote")
        asked, digest = found
        if asked >= len(source.digests) or source.digests[asked] != digest:
            self._refuse(
                f"answers a line {asked} that {source.shown} does not have any more: lines may be added "
                "at its end, not changed"
            )
        written.count += not written.answered[asked]
        written.answered[asked] = 1

    def _refuse(self, why: str) -> NoReturn:
        hint = "Name another file, or remove this one to begin anew."
        raise Exit(BAD_ARGUMENTS, f"--output-file {self.path or self.shown} {why}.", hint, "output_file")
