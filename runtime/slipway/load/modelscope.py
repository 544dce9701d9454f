"""Models of ModelScope, by its public REST interface: a repository's files, each by its name and revision."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from slipway.envs.secrets import trimmed, unsendable
from slipway.load.errors import LoadError
from slipway.load.folder import skipped_beside
from slipway.load.progress import Progress

SITE = "www.modelscope.cn"
MASTER = "master"
TIMEOUT = 60.0
ATTEMPTS = 5
PAUSE = 1.0
"""Seconds before what failed is tried again, once more each time."""
FAILURES = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)
"""Of the site or of the way to it, before an answer and within one. A refusal, HTTPError, is a URLError."""
CHUNK = 1 << 20
MOST_LISTED = 64 << 20
"""Bytes of a list of files."""
SPARE = 64 << 20
"""Bytes that a download leaves free."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository."""

    name: str
    size: int
    sha256: str
    """Empty where the site does not say."""


class Part:
    """A file under way: what has come of it on the disk, and the digest of that."""

    def __init__(self, target: BinaryIO) -> None:
        """Of a file that is open for reading and appending."""
        self._target = target
        self._digest = hashlib.sha256()
        self.size = 0
        """Bytes."""

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self) -> Iterator[int]:
        """Take in what an earlier try left, giving its bytes."""
        self._target.seek(0)
        while octets := self._target.read(CHUNK):
            self._take(octets)
            yield len(octets)

    def add(self, octets: bytes) -> None:
        self._target.write(octets)
        self._take(octets)

    def empty(self) -> None:
        self._target.truncate(0)
        self._digest, self.size = hashlib.sha256(), 0

    def _take(self, octets: bytes) -> None:
        self._digest.update(octets)
        self.size += len(octets)


@dataclass(frozen=True, slots=True)
class Repository:
    """Downloads from one repository, with errors that say what to do.

    folder    where downloads are kept; None: $MODELSCOPE_CACHE or ModelScope's own cache
    metadata  patterns of what is fetched
    weights   patterns, of which the first that matches a file is fetched, too; none: no weights
    ignored   patterns of what is never fetched
    check     raises LoadError for names that are too many models
    """

    name: str
    revision: str | None
    folder: str | None
    progress: Progress | None
    metadata: Sequence[str]
    weights: Sequence[str]
    ignored: Sequence[str]
    check: Callable[[Sequence[str]], object]

    def snapshot(self) -> tuple[Path, list[str]]:
        """The folder with what was fetched, and its names. Raises LoadError."""
        try:
            files = self._chosen(self._listed())
            names = [file.name for file in files]
            self.check(names)
            self._fetch([file for file in files if not self._has(file)])
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._no_space("the disk became full") from None
            raise
        return self._place, names

    @property
    def _place(self) -> Path:
        cache = self.folder or os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope/hub"
        # One folder below, whatever the revision is called.
        revision = urllib.parse.quote(self.revision or MASTER, safe="")
        return Path(cache).expanduser() / "slipway" / self.name / revision

    def _listed(self) -> list[RemoteFile]:
        """As the site lists them, or listed them when it could be asked last."""
        kept = self._place / ".files.json"
        try:
            listed = self._list(1 if kept.is_file() else ATTEMPTS)
            files = self._parsed(listed)
        except LoadError as error:
            if error.code != "NoNetwork" or not kept.is_file():
                raise
            return self._parsed(kept.read_bytes())
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(f".{threading.get_native_id()}")
        fresh.write_bytes(listed)
        fresh.replace(kept)
        return files

    def _list(self, attempts: int) -> bytes:
        """The site's list of files. Asked again where the site is busy, not where it cannot be reached."""
        query = urllib.parse.urlencode({"Revision": self.revision or MASTER, "Recursive": "true"})
        attempt = 1
        while True:
            try:
                with self._opened(f"repo/files?{query}") as answer:
                    return answer.read(MOST_LISTED)
            except urllib.error.HTTPError as error:
                if attempt == attempts or not _passes(error.code):
                    raise self._refused(error) from None
            except FAILURES as error:
                raise self._unreachable(_said(error)) from None
            time.sleep(PAUSE * attempt)
            attempt += 1

    def _parsed(self, listed: bytes) -> list[RemoteFile]:
        try:
            entries: list[Mapping[str, Any]] = json.loads(listed)["Data"]["Files"]
            found = [
                RemoteFile(str(entry["Path"]), int(entry["Size"]), str(entry.get("Sha256") or ""))
                for entry in entries
                if entry.get("Type", "blob") == "blob"
            ]
        except (ValueError, KeyError, TypeError):
            raise self._unreachable("its list of files is none") from None
        for file in found:
            path = PurePosixPath(file.name)
            if path.is_absolute() or ".." in path.parts or "\0" in file.name:
                raise LoadError(
                    "BadCheckpoint", f"{self._named} has a file {file.name!r}, outside its folder."
                )
        return found

    def _chosen(self, files: list[RemoteFile]) -> list[RemoteFile]:
        def of(*patterns: str) -> list[RemoteFile]:
            left_out = skipped_beside(patterns, self.ignored)
            return [
                file
                for file in files
                if any(fnmatch(file.name, pattern) for pattern in patterns)
                and not any(fnmatch(file.name, pattern) for pattern in left_out)
            ]

        for pattern in self.weights:
            if of(pattern):
                return of(*self.metadata, pattern)
        if not self.weights:
            return of(*self.metadata)
        raise LoadError(
            "ModelNotFound",
            f"The repository {self._named} has no weights ({', '.join(self.weights)}).",
            hint="Choose another --load-format, or a repository that has them.",
            argument="load_format",
        )

    def _version(self, file: RemoteFile) -> Path:
        """Beside the files: which version of one is there."""
        return self._place / ".versions" / file.name

    def _part(self, file: RemoteFile) -> Path:
        """What has come of a file so far, named by its version, too."""
        path = self._place / file.name
        return path.with_name(f".{path.name}.{file.sha256[:16] or file.size}.part")

    def _has(self, file: RemoteFile) -> bool:
        try:
            same = self._version(file).read_text() == f"{file.size} {file.sha256}"
            return same and (self._place / file.name).stat().st_size == file.size
        except OSError:
            return False

    def _fetch(self, missing: list[RemoteFile]) -> None:
        total = sum(file.size for file in missing)
        needed = total - sum(_size(self._part(file)) for file in missing)
        self._place.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._place).free
        if needed and needed + SPARE > free:
            raise self._no_space(f"it needs {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free")
        done = 0
        for file in missing:
            for octets in self._downloaded(file):
                done += octets
                if self.progress is not None:
                    self.progress("download", min(done, total), total)

    def _downloaded(self, file: RemoteFile) -> Iterator[int]:
        """Fetch one file, going on where an earlier try stopped; gives how many bytes came, less than 0
        where it begins anew.

        The API and the engine may want the same file: the second waits for the first.
        """
        path, version = self._place / file.name, self._version(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        version.parent.mkdir(parents=True, exist_ok=True)
        with version.with_name(f"{version.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._has(file):  # from who had the lock before
                yield from self._completed(file)
                self._part(file).replace(path)
                version.write_text(f"{file.size} {file.sha256}")

    def _completed(self, file: RemoteFile) -> Iterator[int]:
        """Make the part all of the file. Raises LoadError where its bytes are others than listed."""
        with self._part(file).open("a+b") as target:
            part = Part(target)
            yield from part.read()
            yield from self._rest(file, part)
            if part.size != file.size or part.sha256 != (file.sha256 or part.sha256):
                self._part(file).unlink()
                raise LoadError(
                    "BadCheckpoint",
                    f"{file.name} of {self._named} came with other bytes than the site promised.",
                    hint="Start again; if it happens again, ask who publishes the model.",
                )

    def _rest(self, file: RemoteFile, part: Part) -> Iterator[int]:
        """Bring what the part has not yet."""
        query = urllib.parse.urlencode({"Revision": self.revision or MASTER, "FilePath": file.name})
        reached = part.size
        for attempt in range(1, ATTEMPTS + 1):
            try:
                while part.size < file.size:
                    with self._opened(f"repo?{query}", part.size) as answer:
                        if part.size and answer.status != 206:  # a proxy that knows no ranges
                            yield -part.size
                            part.empty()
                        while octets := answer.read(CHUNK):
                            part.add(octets)
                            yield len(octets)
                    if part.size <= reached:
                        raise ConnectionError("nothing more came")
                    reached = part.size
                return
            except FAILURES as error:
                if isinstance(error, urllib.error.HTTPError) and not _passes(error.code):
                    raise self._refused(error) from None
                if attempt == ATTEMPTS:
                    raise LoadError(
                        "Interrupted",
                        f"The download of {self._named} broke off: {_said(error)}.",
                        hint="Start again: it continues where it stopped.",
                    ) from None
                time.sleep(PAUSE * attempt)

    @contextmanager
    def _opened(self, path: str, first: int = 0) -> Iterator[http.client.HTTPResponse]:
        """The answer to a GET below the repository, from byte `first` on, or from 0 where its status is 200.

        Raises one of FAILURES, and LoadError where nothing may be asked.
        """
        site = os.environ.get("MODELSCOPE_DOMAIN") or SITE
        site = site if "://" in site else f"https://{site}"
        request = urllib.request.Request(f"{site}/api/v1/models/{self.name}/{path}")
        if token := _token():
            # Not for the store to which the site may redirect.
            request.add_unredirected_header("Cookie", f"m_session_id={token}")
        if first:
            request.add_header("Range", f"bytes={first}-")
        if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
            raise self._unreachable("HF_HUB_OFFLINE is set")
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            yield answer

    @property
    def _named(self) -> str:
        return f"{self.name} (revision {self.revision})" if self.revision else self.name

    def _refused(self, error: urllib.error.HTTPError) -> LoadError:
        if error.code == 404:
            return LoadError(
                "ModelNotFound",
                f"ModelScope has no model {self._named}, or it is private, and there is no such folder here.",
                hint="Check the spelling (owner/name) and the revision, or unset VLLM_USE_MODELSCOPE for "
                "models of Hugging Face.",
            )
        if error.code in (401, 403):
            return LoadError(
                "ModelGated",
                f"ModelScope does not let you read {self._named}.",
                hint="Set MODELSCOPE_API_TOKEN to a token of an account that may.",
            )
        return self._unreachable(_said(error))

    def _unreachable(self, why: str) -> LoadError:
        return LoadError(
            "NoNetwork",
            f"{self._named} cannot be had from ModelScope: {why}.",
            hint="Check the network and the proxy; MODELSCOPE_DOMAIN names another site.",
        )

    def _no_space(self, why: str) -> LoadError:
        return LoadError(
            "NoSpace",
            f"There is no space for {self._named} in {self._place}: {why}.",
            hint="Free some, or name another place by --download-dir.",
            argument="download_dir",
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another process may just have completed it
        return 0


def _token() -> str:
    """The account's, empty where there is none. Raises LoadError for one that no header carries."""
    name = "MODELSCOPE_API_TOKEN"
    token = trimmed(os.environ.get(name, ""))
    if reason := unsendable(token):
        raise LoadError("ModelGated", f"{name} {reason}")
    return token


def _passes(status: int) -> bool:
    """Whether another attempt may succeed."""
    return status in (408, 429) or status >= 500


def _said(error: Exception) -> str:
    """Why the site could not be asked, without the phrases that its own answer brings."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    return str(getattr(error, "reason", error)) or type(error).__name__
