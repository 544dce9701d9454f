"""The layers of large images, kept between grounds: a registry starts with them and is sent what is new.

They are hard links in the layout of the registry's own storage: they take no time, and no second place on the
disk. The registry never writes into a file that exists; it moves new ones over the old.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from e2e.ground.build import cache

_ROOT = Path("docker/registry/v2")


def fill(storage: Path) -> None:
    """Put what is kept into the storage of a registry that is not running yet."""
    with _alone():
        files = [path.relative_to(_kept()) for path in _kept().rglob("*") if path.is_file()]
        _link(_kept(), storage, files)


def keep(storage: Path, references: Iterable[str]) -> None:
    """Keep the layers of these images, `NAME:TAG` in a registry's storage, and nothing else."""
    with _alone():
        fresh = _kept().with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        for reference in references:
            name, _, tag = reference.rpartition(":")
            _link(storage, fresh, _layers(storage, name, tag))
        shutil.rmtree(_kept(), ignore_errors=True)
        fresh.rename(_kept())


def _layers(storage: Path, name: str, tag: str) -> Iterator[Path]:
    """The files of an image's layers, below the storage: the content, and the link that says whose it is."""
    repository = _ROOT / "repositories" / name
    pointer = storage / repository / "_manifests" / "tags" / tag / "current" / "link"
    manifest = json.loads((storage / _content(pointer.read_text())).read_text())
    for part in (manifest["config"], *manifest["layers"]):
        algorithm, _, digest = part["digest"].partition(":")
        yield _content(part["digest"])
        yield repository / "_layers" / algorithm / digest / "link"


def _content(digest: str) -> Path:
    algorithm, _, number = digest.strip().partition(":")
    return _ROOT / "blobs" / algorithm / number[:2] / number / "data"


def _link(source: Path, target: Path, files: Iterable[Path]) -> None:
    """Where the two are on different disks nothing is linked: a copy would cost what a push does."""
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            os.link(source / file, target / file)


def _kept() -> Path:
    return cache() / "layers"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Others fill their registries at the same moment."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / ".layers.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
