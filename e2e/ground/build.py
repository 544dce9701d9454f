"""Build the programs from their pinned modules into a cache, once for each state of the pins."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from e2e.ground.programs import KUBERNETES, MODULES, PROGRAMS, Program

_VERSION = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES.split(".")
# Without these a client reads v0.0.0-master+$Format:%H$ as the server's version.
_KUBERNETES_FLAGS = (
    f" -X {_VERSION}.gitVersion=v{KUBERNETES} -X {_VERSION}.gitMajor={_MAJOR} -X {_VERSION}.gitMinor={_MINOR}"
)


class BuildFailed(Exception):
    """A sentence for the person whose machine could not build a program."""


def cache() -> Path:
    """Where built programs live: $SLIPWAY_E2E_CACHE, or a folder in the home directory."""
    chosen = os.environ.get("SLIPWAY_E2E_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "slipway" / "e2e"


def place(program: Program) -> Path:
    """Where this program is, or will be: the folder names the state of the module's pins and tags."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        source = MODULES / program.module / name
        if source.exists():
            digest.update(source.read_bytes())
    digest.update(",".join(program.tags).encode())
    return cache() / f"{program.module}-{digest.hexdigest()[:12]}" / program.name


def build(name: str) -> Path:
    """The path of a program that can be run; compiled now when the cache lacks it.

    Programs in $KUBEBUILDER_ASSETS are taken as they are. Raises BuildFailed.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (given := Path(assets) / name).is_file():
        return given
    program = PROGRAMS[name]
    target = place(program)
    if target.exists():
        return target
    with _alone(program.module):
        if not target.exists():
            _compile(program, target)
            _forget_older(program.module, target.parent)
    return target


def source(module: str, path: str) -> Path:
    """The folder of the Go module `path` as `go/MODULE` pins it, for what lies beside its code.

    Raises BuildFailed.
    """
    done = subprocess.run(
        [_go(path), "mod", "download", "-json", path],
        cwd=MODULES / module,
        env={**os.environ, "GOWORK": "off"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BuildFailed(f"The source of {path} could not be had: {done.stderr or done.stdout}")
    return Path(json.loads(done.stdout)["Dir"])


def _go(wanted: str) -> Path:
    """The Go of this environment, which pyproject.toml names, else the machine's."""
    own = Path(sys.executable).with_name("go")
    found = str(own) if own.exists() else shutil.which("go")
    if found is None:
        raise BuildFailed(
            f"{wanted} is not in {cache()} and there is no Go to get it with: type `make setup-dev`, or name "
            "a folder that holds the program in KUBEBUILDER_ASSETS."
        )
    return Path(found)


def _compile(program: Program, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    flags = "-s -w" + (_KUBERNETES_FLAGS if program.module == "kubernetes" else "")
    done = subprocess.run(
        [
            "nice",
            _go(program.name),
            "build",
            "-mod=readonly",
            "-trimpath",
            "-ldflags",
            flags,
            "-tags",
            ",".join(program.tags),
            "-o",
            unfinished,
            program.package,
        ],
        cwd=MODULES / program.module,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        raise BuildFailed(
            f"{program.name} did not build in {MODULES / program.module}:\n{done.stderr[-4000:]}"
        )
    unfinished.rename(target)


def _forget_older(module: str, current: Path) -> None:
    """Remove what the module's earlier pins had built: a set of programs is over half a gigabyte.

    Not today's: another clone with pins of its own may be running them.
    """
    for folder in cache().glob(f"{module}-*"):
        old = time.time() - folder.stat().st_mtime > 24 * 3600
        if old and folder != current and folder.name.rpartition("-")[0] == module:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(module: str) -> Iterator[None]:
    """Hold the module's lock: of several test runs one compiles and the others wait for it."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / f".{module}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(slots=True)
class Binaries:
    """Paths of programs by name, each built when it is first asked for."""

    _known: dict[str, Path] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Path:
        if name not in self._known:
            self._known[name] = build(name)
        return self._known[name]

    def folder(self, *names: str) -> Path:
        """The folder that holds all of these programs of one module, by their own names."""
        return [self[name].parent for name in names][-1]
