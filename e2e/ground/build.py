"""Build the programs from their pinned modules into a cache, once for each state of the pins."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from e2e.ground.children import ENDS_WITH_US
from e2e.ground.programs import KUBERNETES, MODULES, PROGRAMS, Program, batch

_VERSION = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES.split(".")
# Without these a client reads v0.0.0-master+$Format:%H$ as the server's version.
_LINKING = (
    f"-s -w -X {_VERSION}.gitVersion=v{KUBERNETES}"
    f" -X {_VERSION}.gitMajor={_MAJOR} -X {_VERSION}.gitMinor={_MINOR}"
)


class BuildFailed(Exception):
    """A sentence for the person whose machine could not build a program."""


def cache() -> Path:
    """Where built programs live: $SLIPWAY_E2E_CACHE, or a folder in the home directory."""
    chosen = os.environ.get("SLIPWAY_E2E_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "slipway" / "e2e"


def place(program: Program) -> Path:
    """Where this program is, or will be: the folder names the state of the module's pins and programs."""
    folder = MODULES / program.module
    digest = hashlib.sha256()
    for file in sorted((folder / "go.mod", folder / "go.sum", *folder.glob("*/main.go"))):
        digest.update(file.read_bytes())
    digest.update(repr([one for one in PROGRAMS.values() if one.module == program.module]).encode())
    return cache() / f"{program.module}-{digest.hexdigest()[:12]}" / program.name


def build(name: str, say: Callable[[str], None] = lambda line: None) -> Path:
    """The path of a program that can be run; compiled now, with its batch, when the cache lacks it.

    Programs in $KUBEBUILDER_ASSETS are taken as they are. `say` is told what takes minutes, and what it took.
    Raises BuildFailed.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (given := Path(assets) / name).is_file():
        return given
    target = place(PROGRAMS[name])
    if target.exists():
        return target
    wanted = batch(name)
    names = ", ".join(program.name for program in wanted)
    with _alone(wanted[0]):
        if not target.exists():
            say(f"building {names}")
            begin = time.monotonic()
            _compile(wanted, target.parent)
            say(f"built {names} in {time.monotonic() - begin:.0f} s")
            _forget_older(wanted[0].module, target.parent)
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


def _compile(programs: Sequence[Program], folder: Path) -> None:
    """One call of `go build` for all of them, which are of one module and have the same tags."""
    module, tags = programs[0].module, programs[0].tags
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as unfinished:
        done = subprocess.run(
            [
                *ENDS_WITH_US,
                *(_go(programs[0].name), "build", "-mod=readonly", "-trimpath", "-pgo=off"),
                # Nobody debugs these programs: without DWARF the compiler does a seventh less.
                *("-gcflags=all=-dwarf=false", "-ldflags=" + _LINKING, "-tags=" + ",".join(tags)),
                *("-o", unfinished + "/", *(program.package for program in programs)),
            ],
            cwd=MODULES / module,
            env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            names = ", ".join(program.name for program in programs)
            raise BuildFailed(f"{names} did not build in {MODULES / module}:\n{done.stderr[-4000:]}")
        for program in programs:
            (Path(unfinished) / executable(program.package)).rename(folder / program.name)


def executable(package: str) -> str:
    """What `go build` calls a package's program: its last name that is no version."""
    *_, before, last = package.split("/")
    return before if re.fullmatch(r"v\d+", last) else last


def _forget_older(module: str, current: Path) -> None:
    """Remove what the module's earlier pins had built: a set of programs is over half a gigabyte.

    Not today's: another clone with pins of its own may be running them.
    """
    for folder in cache().glob(f"{module}-*"):
        old = time.time() - folder.stat().st_mtime > 24 * 3600
        if old and folder != current and folder.name.rpartition("-")[0] == module:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(program: Program) -> Iterator[None]:
    """Hold the batch's lock: of several test runs one compiles and the others wait for it."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / f".{program.module}-{program.batch}.lock", "w") as lock:
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
