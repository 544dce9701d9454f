"""Every environment is installed from locks/: exact versions with hashes, whatever an index has meanwhile."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "cpu": ("cpu",),
    "test": ("cpu", "operator", "otel", "test"),
    "dev": (*("cpu", "torch", "cuda", "operator", "otel"), *("mistral", "ray", "bench", "test", "dev")),
    "clients": ("clients",),
    "image-cpu": ("cpu", "otel"),
    "image-cpu-torch": ("cpu", "otel", "torch"),
    "image-cuda": ("cpu", "otel", "cuda"),
    "image-operator": ("operator",),
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PIN = re.compile(r"^([a-z0-9.-]+)==(\S+?)(?: ; (.+?))? \\$", re.MULTILINE)
CACHE = Path(os.environ.get("SLIPWAY_CACHE") or Path.home() / ".cache" / "slipway")


def pins(lock: str, python: str) -> dict[str, Version]:
    """Versions by name, as a Linux machine with this Python installs them."""
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    found = PIN.findall((LOCKS / f"{lock}.txt").read_text())
    return {name: Version(pin) for name, pin, when in found if not when or Marker(when).evaluate(here)}


def unmet(lock: str, python: str) -> Iterator[str]:
    locked = pins(lock, python)
    asked = [name for extra in EXTRAS[lock] for name in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *asked]):
        version = locked.get(canonicalize_name(requirement.name))
        apart = lock == "image-cpu-torch" and requirement.name == "torch"
        if not apart and (version is None or version not in requirement.specifier):
            yield f"locks/{lock}.txt for Python {python} has {version} of {requirement}"


def test_locks_have_what_pyproject_asks_for() -> None:
    found = [one for lock in EXTRAS for python in PYTHONS for one in unmet(lock, python)]
    assert not found, "\n".join([*found, "Run make lock."])


def test_environments_that_share_a_package_have_one_version_of_it() -> None:
    """But the clients', whose requirements conflict with the others'."""
    for python in PYTHONS:
        whole = pins("dev", python)
        for lock in EXTRAS.keys() - {"dev", "clients"}:
            assert pins(lock, python).items() <= whole.items(), lock


def test_every_pin_has_hashes_and_no_lock_names_an_index() -> None:
    for path in LOCKS.glob("*.txt"):
        text = path.read_text()
        assert "://" not in text, path
        assert not re.search(r"^--", text, re.MULTILINE), path
        if path.name != "torch.txt":  # whose build for CPU has hashes of its own
            entries = re.split(r"\n(?=[a-z0-9])", text)[1:]
            assert entries, path
            assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_the_image_with_torch_for_cpu_pins_the_same_torch_and_what_that_requires(python: str) -> None:
    whole, locked = pins("dev", python), pins("image-cpu-torch", python)
    assert (LOCKS / "torch.txt").read_text() == f"torch=={whole['torch']}\n"
    of_cuda = {name for name in whole if name.startswith(("nvidia-", "cuda-"))} | {"torch", "triton"}
    assert not of_cuda & locked.keys()
    assert {"filelock", "fsspec", "jinja2", "networkx", "sympy", "mpmath"} <= locked.keys()


@pytest.mark.torch
def test_the_image_locks_every_package_that_torch_requires() -> None:
    """The image installs torch without its dependencies."""
    asked = [Requirement(one) for one in requires("torch") or ()]
    here = {"extra": "", "platform_system": "Linux", "platform_machine": "x86_64"}
    names = {one.name for one in asked if not one.marker or one.marker.evaluate(here)}
    named = {name for name in names if not name.startswith(("nvidia-", "cuda-"))} - {"triton"}
    assert named <= pins("image-cpu-torch", f"{sys.version_info[0]}.{sys.version_info[1]}").keys()
    assert len(named) > 5


def test_images_install_from_locks_alone() -> None:
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    installing = re.findall(r"\$\{INSTALL\} ([^&\n]*[^&\s])", text)
    assert len(installing) == 5
    for arguments in installing:
        name = arguments.rpartition("-r locks/")[2]
        assert (LOCKS / name).is_file()
        assert arguments.startswith("--no-deps " if name == "torch.txt" else "--require-hashes ")
    lines = [line for line in text.splitlines() if " pip install " in line]
    (own,) = (line for line in lines if not line.startswith("ARG INSTALL="))
    assert " --no-deps --no-build-isolation " in own


def wheel(folder: Path, name: str, version: str) -> str:
    """Write an empty package; its hash."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for file, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{file},sha256={digest},{len(text)}\n"
    listed = f"{name}-{version}.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files | {listed: f"{record}{listed},,\n"}).items():
            archive.writestr(file, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def set_up(lock: Path, place: Path, wheels: Path) -> subprocess.CompletedProcess[str]:
    """What make runs for an environment, with a folder of wheels for an index."""
    return subprocess.run(
        [
            "tools/uv",
            sys.executable,
            CACHE,
            *f"pip install --target {place} --require-hashes -r {lock}".split(),
        ],
        cwd=ROOT,
        env=os.environ | {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(wheels)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_locked_version_is_installed_though_newer_ones_are_there(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    digest = wheel(wheels, "sailcloth", "1.2.0")
    wheel(wheels, "sailcloth", "1.2.1")
    wheel(wheels, "sailcloth", "9.0")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"sailcloth==1.2.0 \\\n    --hash=sha256:{digest}\n")
    done = set_up(lock, tmp_path / "site", wheels)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "sailcloth.py").read_text() == "VERSION = '1.2.0'\n"


@pytest.mark.parametrize("hashed", [True, False], ids=["another file", "no hash"])
def test_what_is_not_the_locked_file_is_not_installed(tmp_path: Path, hashed: bool) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "sailcloth", "1.2.0")
    lock = tmp_path / "lock.txt"
    lock.write_text("sailcloth==1.2.0" + (f" \\\n    --hash=sha256:{'0' * 64}\n" if hashed else "\n"))
    done = set_up(lock, tmp_path / "site", wheels)
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not (tmp_path / "site" / "sailcloth.py").exists()
