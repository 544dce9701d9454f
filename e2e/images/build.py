"""Builds the targets of the Containerfile, each once for each content of what goes into it.

An image's tag is a hash of its sources, so that an unchanged tree costs one look into the container storage.
The sources are copied before they are hashed: an edit during a build cannot get under another tree's tag.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.ground import packages
from e2e.ground.children import ENDS_WITH_US
from slipway.args.export import short_schema

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
TOOLS = ("locks/tools.txt", "tools/uv")
CODE = ("runtime/slipway", "kernels/slipway_kernels", "operator/slipway_operator", "image")
DEMO = (
    "runtime/slipway/__init__.py",
    *(f"runtime/slipway/load/{n}.py" for n in ("__init__", "errors", "demo", "package_index")),
)
SOURCES = {
    "runtime-cpu": (*PACKAGING, *CODE, *TOOLS, "locks/image-cpu.txt"),
    "operator": (*PACKAGING, *CODE, *TOOLS, "locks/image-operator.txt"),
    "demo-model": DEMO,
    "runtime-cuda": (*PACKAGING, *CODE, *TOOLS, "locks/image-cpu.txt", "locks/image-cuda.txt"),
}
"""What a change of can change the image."""
TARGETS = ("runtime-cpu", "operator", "demo-model", "runtime-cuda")
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.so", "*.so.*")

BASE_PACKAGES = "python3,python3-venv,ca-certificates"
KEPT = 2
"""Images of one target that stay, the newest first: a day of editing would fill the disk."""
# The index of torch: PyPI's CUDA build is 4 GB larger than PyTorch's own for CPU, but every mirror has it.
TORCH_INDEX = os.environ.get("SLIPWAY_TORCH_INDEX", "https://pypi.org/simple")
HOST_FILES = ("/etc/ssl/certs", "/etc/pip.conf")
"""What the machine knows of its network: a proxy's certificate, an index. None of it stays in an image."""


class ImagesUnavailable(Exception):
    """This machine cannot build images; the sentence says what it lacks and what to type."""


def missing() -> str | None:
    """Why this machine cannot build images, as a sentence; packages that lack are installed."""
    if os.geteuid() != 0:
        return "Images are built and run as root here. Run the tests as root, in a machine of their own."
    return packages.install(packages.IMAGES)


def build(target: str) -> str:
    """The image's reference in this machine's container storage, built if its content is new.

    Takes seconds when built before, else up to ten minutes. Raises ImagesUnavailable, and
    CalledProcessError where the build itself fails; buildah's output is on standard error.
    """
    if target not in SOURCES:
        raise ImagesUnavailable(f"There is no target {target}. There are {', '.join(SOURCES)}.")
    if reason := missing():
        raise ImagesUnavailable(reason)
    with _lock(), tempfile.TemporaryDirectory(prefix="slipway-image-") as place:
        base = _base()
        context = Path(place) / "context"
        key = _key(base, _copied(SOURCES[target], context))
        reference = f"localhost/slipway/{target}:{key}"
        if not _exists(reference):
            _build(target, reference, base, context)
            _forget_older(reference)
        return reference


@contextmanager
def _lock() -> Iterator[None]:
    """One build at a time on a machine: two would compile the same and fill the disk twice."""
    folder = Path(os.environ.get("SLIPWAY_E2E_CACHE", "~/.cache/slipway/e2e")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "images.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copied(sources: Sequence[str], context: Path) -> list[Path]:
    """The files of the build, sorted, below `context` with the times that they have in the tree."""
    for name in ("Containerfile", ".containerignore", *sources):
        source, target = ROOT / name, context / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=NOT_COPIED)
        else:
            shutil.copy2(source, target)
    return sorted(path for path in context.rglob("*") if path.is_file())


def _key(base: str, files: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{base}\n{TORCH_INDEX}\n".encode())
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _base() -> str:
    """The image that the Containerfile starts from: Debian with Python, from Debian's own archive."""
    key = hashlib.sha256(BASE_PACKAGES.encode()).hexdigest()[:12]
    reference = f"localhost/slipway/base:{key}"
    if _exists(reference):
        return reference
    with tempfile.TemporaryDirectory(prefix="slipway-base-") as place:
        root = Path(place) / "root"
        _run("debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", str(root))
        for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / folder)
            (root / folder / "partial").mkdir(parents=True)
        archive = Path(place) / "root.tar"
        _run("tar", "-C", str(root), "-cf", str(archive), ".")
        _run("podman", "import", "--quiet", str(archive), reference)
    return reference


def _build(target: str, reference: str, base: str, context: Path) -> None:
    mounts = [f"--volume={path}:{path}:ro" for path in HOST_FILES if Path(path).exists()]
    arguments = {"BASE": base, "TORCH_INDEX": TORCH_INDEX, "SCHEMA": short_schema()}
    _run(
        *("buildah", "--runtime", "runc", "build", "--isolation", "chroot", "--network", "host", "--layers"),
        *mounts,
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *("--target", target, "--tag", reference, "--file", str(context / "Containerfile"), str(context)),
    )


def _forget_older(reference: str) -> None:
    """Remove the target's tags of other contents; a container that still runs one keeps it.

    The new one may be as old as they are: contents that differ in nothing that is copied make one image.
    """
    listed = _output("podman", "images", "--sort", "created", "--format", "{{.Repository}}:{{.Tag}}").split()
    target = reference.rpartition(":")[0]
    others = [name for name in listed if name.startswith(f"{target}:") and name != reference]
    for name in others[KEPT - 1 :]:
        subprocess.run(["podman", "rmi", name], capture_output=True, check=False)


def _exists(reference: str) -> bool:
    return subprocess.run(["podman", "image", "exists", reference], check=False).returncode == 0


def _run(*command: str) -> None:
    """Niced, its output on standard error, and ended with the one who asked for it."""
    subprocess.run(
        [*ENDS_WITH_US, "nice", "-n", "10", *command],
        stdin=subprocess.DEVNULL,
        stdout=2,
        check=True,
    )


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
