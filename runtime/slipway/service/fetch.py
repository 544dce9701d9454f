"""A model of an S3 bucket as files, for `slipway fetch`.

Each file appears whole or not at all; what an interrupted fetch has of it is kept beside the target and
continued. A second fetch of the same target waits for the first and then finds nothing to do.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.load.errors import LoadError
from slipway.load.progress import Progress
from slipway.service.bucket import Bucket, Entry

AT_ONCE = 4
"""Files under way; one connection seldom fills a link."""
CHUNK = 16 << 20
"""Bytes of a request: what is fetched again after an interruption."""
SPARE = 64 << 20
"""Bytes that a fetch leaves free."""
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a target keeps what is not part of it, all beside it and on its file system."""

    target: Path

    def beside(self, suffix: str) -> Path:
        return self.target.with_name(f".{self.target.name}.{suffix}")

    def file(self, entry: Entry) -> Path:
        return self.target / entry.name if entry.name else self.target


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch has done."""

    files: int
    octets: int
    """Of all files, those included that were there before."""


class Record:
    """Which version of each file the target has: a file of it, written anew after each that comes."""

    def __init__(self, path: Path, versions: dict[str, Any]) -> None:
        self._path = path
        self._versions = versions

    @classmethod
    def read(cls, path: Path) -> Record:
        """Empty where there is none, or none that can be read: then every file is fetched."""
        try:
            found = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            found = {}
        return cls(path, found if isinstance(found, dict) else {})

    def has(self, entry: Entry, path: Path) -> bool:
        same = self._versions.get(entry.name) == [entry.size, entry.etag]
        return same and path.is_file() and path.stat().st_size == entry.size

    def add(self, entry: Entry) -> None:
        self._versions[entry.name] = [entry.size, entry.etag]
        self._write()

    def forget_all_but(self, names: set[str]) -> list[str]:
        """The names below the target that no longer belong to it."""
        gone = sorted(self._versions.keys() - names)
        self._versions = {name: version for name, version in self._versions.items() if name in names}
        self._write()
        return [name for name in gone if name]

    def _write(self) -> None:
        draft = self._path.with_name(f"{self._path.name}.new")
        draft.write_text(json.dumps(self._versions))
        draft.replace(self._path)


def fetch(bucket: Bucket, target: Path, progress: Progress, skip: tuple[str, ...] = ()) -> Fetched:
    """Make `target` the folder, or the file, that the bucket has under its prefix.

    skip  endings of the names of files that are not brought

    Files that an earlier fetch brought and the bucket no longer has are removed; others are left alone.
    Raises LoadError, and OSError where the target cannot be written.
    """
    entries = bucket.entries()
    places = Places(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(places.beside("lock")) as parts:
            record = Record.read(places.beside("fetched.json"))
            wanted = [entry for entry in entries if not (entry.name or bucket.uri).endswith(skip)]
            missing = [entry for entry in wanted if not record.has(entry, places.file(entry))]
            folder = places.beside(parts)
            _check_space(target, missing, folder)
            _bring(bucket, places, missing, folder, record, progress)
            for name in record.forget_all_but({entry.name for entry in entries}):
                (target / name).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise _no_space(f"The disk became full while {bucket.uri} was fetched into {target}.") from None
    return Fetched(len(wanted), sum(entry.size for entry in wanted))


@contextmanager
def _alone(path: Path) -> Iterator[str]:
    """Holds the lock of a target; yields the suffix of the folder for unfinished files."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"slipway fetch: waits for another that writes {path.parent}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            # Two that cannot see each other must not write one file; an interruption then costs it all.
            yield f"{socket.gethostname()}-{os.getpid()}.part"
            return
        yield "part"


def _check_space(target: Path, missing: Iterable[Entry], parts: Path) -> None:
    needed = sum(entry.size - _size(_part(parts, entry)) for entry in missing)
    free = shutil.disk_usage(target.parent).free
    if needed and needed + SPARE > free:
        raise _no_space(
            f"{target} lacks {needed / 1e9:.2f} GB of the model, and {free / 1e9:.2f} GB are free there."
        )


def _no_space(message: str) -> LoadError:
    return LoadError(
        "NoSpace", message, hint="Enlarge the volume: spec.model.cache has its size or its claim."
    )


def _part(parts: Path, entry: Entry) -> Path:
    """The unfinished file, named by its version too: a newer one does not continue an older."""
    return parts / hashlib.sha256(f"{entry.key}\n{entry.etag}".encode()).hexdigest()[:32]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _bring(
    bucket: Bucket,
    places: Places,
    missing: list[Entry],
    parts: Path,
    record: Record,
    progress: Progress,
) -> None:
    """Fetch the entries, several at once. The first failure stops the others after their chunk."""
    parts.mkdir(exist_ok=True)
    total = sum(entry.size for entry in missing)
    done = sum(_size(_part(parts, entry)) for entry in missing)
    guard, failed = threading.Lock(), threading.Event()

    def count(octets: int) -> None:
        nonlocal done
        with guard:
            done += octets
            progress("download", done, total)

    def bring(entry: Entry) -> None:
        try:
            part, path = _part(parts, entry), places.file(entry)
            with part.open("ab") as file:
                while (start := file.tell()) < entry.size:
                    if failed.is_set():
                        return
                    octets = bucket.read(entry, start, min(start + CHUNK, entry.size))
                    file.write(octets)
                    file.flush()
                    count(len(octets))
                os.fsync(file.fileno())
            path.parent.mkdir(parents=True, exist_ok=True)
            part.replace(path)
            with guard:
                record.add(entry)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for result in [pool.submit(bring, entry) for entry in missing]:
                result.result()
        except BaseException:  # an interruption from the keyboard too
            failed.set()
            raise
