"""What is installed where there is no clone: the wheel, the source archive, and both without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from slipway import __version__
from slipway_kernels.cpu import isa

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "slipway_kernels"
CONSOLE = ROOT / "runtime" / "slipway" / "api" / "console"
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.so*", "*.egg-info")
LIBRARY = "slipway_kernels/_cpu.so"
NO_COMPILER = {"CXX": "/nonexistent"}


def run(
    *words: str | Path,
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Python with these words, without the clone on its path."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CXX")}
    clean |= {} if path is None else {"PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=clean | dict(env or {}),
    )


def copied_tree(place: Path) -> Path:
    def ignored(folder: str, names: list[str]) -> set[str]:
        """Also what builds leave in the root; a package may have such a name."""
        left = {"build", "dist"} if Path(folder) == ROOT else set()
        return NOT_COPIED(folder, names) | (left & set(names))

    return Path(shutil.copytree(ROOT, place / "tree", ignore=ignored))


def with_objects(tree: Path) -> Path:
    """The tree with what was compiled of it here: to compile again what is up to date would prove no more."""
    objects = ROOT / "build" / "kernels"
    if objects.is_dir():
        shutil.copytree(objects, tree / "build" / "kernels")
    return tree


def wheel_of(source: Path, place: Path, env: Mapping[str, str] | None = None) -> tuple[zipfile.ZipFile, str]:
    """The wheel that pip builds, and what pip printed meanwhile."""
    words = ("pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    built = run("-m", *words, "-w", place, source, env=env)
    said = built.stdout + built.stderr
    assert built.returncode == 0, said
    (wheel,) = place.glob("*.whl")
    assert wheel.match("slipway-*-py3-none-linux_*.whl")
    return zipfile.ZipFile(wheel), said


def installed(wheel: zipfile.ZipFile, place: Path) -> Path:
    wheel.extractall(place)
    return place


def entry_point(site: Path) -> str:
    """Python code that runs `slipway` as the installed command does."""
    (listed,) = site.glob("*.dist-info/entry_points.txt")
    module, _, function = listed.read_text().split("slipway = ")[1].strip().partition(":")
    return f"import sys; from {module} import {function}; sys.exit({function}())"


def slipway(site: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run("-c", entry_point(site), *words, path=site, cwd=cwd)


@pytest.fixture(scope="module")
def source_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sdist")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(place)!r})"
    built = run("-c", code, cwd=copied_tree(place))
    assert built.returncode == 0, built.stderr
    (archive,) = place.glob("slipway-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel_without_compiler(tmp_path_factory: pytest.TempPathFactory) -> tuple[zipfile.ZipFile, str]:
    place = tmp_path_factory.mktemp("without-compiler")
    return wheel_of(copied_tree(place), place, NO_COMPILER)


def test_a_wheel_of_the_tree_holds_the_runtime_and_the_compiled_kernels_and_runs(tmp_path: Path):
    wheel, _ = wheel_of(with_objects(copied_tree(tmp_path)), tmp_path)
    names = wheel.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "slipway",
        "slipway_kernels",
        "slipway_operator",
    }
    assert {LIBRARY, "slipway/py.typed", "slipway_kernels/cpu/slipway.h"} <= set(names)
    modules = {str(path.relative_to(ROOT / "runtime")) for path in (ROOT / "runtime").rglob("*.py")}
    assert modules <= set(names)
    assert {f"slipway/api/console/{path.name}" for path in CONSOLE.iterdir()} <= set(names)

    site = installed(wheel, tmp_path / "site")
    dry = slipway(site, "serve", "x", "--dry-run", cwd=tmp_path)
    assert (dry.returncode, dry.stdout.startswith('{"model_tag": "x"')) == (0, True), dry.stderr
    loaded = run("-c", "from slipway_kernels.cpu import isa; print(isa())", path=site, cwd=tmp_path)
    assert loaded.stdout.strip() == isa(), loaded.stderr


def test_a_wheel_of_the_source_archive_has_the_kernels_too(source_archive: Path, tmp_path: Path):
    with tarfile.open(source_archive) as archive:
        archive.extractall(tmp_path / "archive", filter="data")
    (tree,) = (tmp_path / "archive").iterdir()
    wheel, _ = wheel_of(with_objects(tree), tmp_path)
    assert LIBRARY in wheel.namelist()


def test_the_source_archive_carries_all_that_is_built_of_it_and_no_tests(source_archive: Path):
    with tarfile.open(source_archive) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {path for suffix in ("cpp", "h", "inl", "py") for path in KERNELS.rglob(f"*.{suffix}")}
    wanted |= set(CONSOLE.iterdir())
    assert {str(path.relative_to(ROOT)) for path in wanted} <= names
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_without_a_compiler_the_build_says_so_and_goes_on(
    wheel_without_compiler: tuple[zipfile.ZipFile, str],
):
    wheel, said = wheel_without_compiler
    assert "slipway: installing without the CPU kernels. No C++ compiler: /nonexistent not found." in said
    assert LIBRARY not in wheel.namelist()


def test_without_kernels_the_schema_works_and_their_use_says_what_is_missing(
    wheel_without_compiler: tuple[zipfile.ZipFile, str], tmp_path: Path
):
    site = installed(wheel_without_compiler[0], tmp_path / "site")
    version = slipway(site, "--version", cwd=tmp_path)
    assert version.stdout.strip() == __version__, version.stderr
    status = slipway(site, "args", "--status", cwd=tmp_path)
    assert (status.returncode, "arguments: " in status.stdout) == (0, True), status.stderr

    used = run("-c", "import slipway_kernels.cpu as cpu; cpu.isa()", path=site, cwd=tmp_path)
    assert used.returncode == 1
    assert "RuntimeError: The CPU kernels are not built: " in used.stderr
    assert "Install g++ and run `python -m slipway_kernels.build`." in used.stderr
