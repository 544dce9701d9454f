"""Launches through the driver's own interface, under a driver that starts nothing."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from e2e.ground.patience import scaled

import stub_cuda
from slipway_kernels.cuda import compiled
from slipway_kernels.cuda.compiled import Compiled, Descriptor
from slipway_kernels.cuda.specialization import Specialization
from slipway_kernels.cuda.tiles import Tile

HERE = Path(__file__).parent
CODE = Compiled("kernel", 4, 1024, 256, (Descriptor(3, 2, 9, (64, 32)),), b"\x7fELF\n\n")
Program = Callable[..., Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub_cuda.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def told(library: Path, tmp_path: Path) -> Program:
    """What a program of this folder prints, with kernels that are compiled, not interpreted."""

    def run(name: str, *words: str) -> Any:
        path = os.pathsep.join([str(HERE.parent), *sys.path])
        environ = os.environ | {"TRITON_INTERPRET": "0", "SLIPWAY_CACHE": str(tmp_path), "PYTHONPATH": path}
        command = (sys.executable, HERE / name, library, *words)
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=scaled(240), check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.slow
def test_kernels_are_given_what_they_take(told: Program) -> None:
    """By the sizes that their machine code tells: pointers, numbers, descriptors for TMA, and memory in which
    a kernel makes descriptors itself."""
    operations = ("rms_norm", "rope", "attention", "linear_w8a8", "linear_w4a16")
    makes_descriptors = "attention:prompt 33 4/2x16 bf16 contiguous"
    launches = told("launched_parameters.py", *operations, makes_descriptors)
    assert [name for name, _ in launches].count("prefill_kernel with scratch memory") == 1
    assert {"rms_norm_kernel", "rope_and_store_kernel", "prefill_kernel", "tiles_kernel"} <= dict(
        launches
    ).keys()
    assert [faults for _, faults in launches if faults] == []


@pytest.mark.slow
def test_what_is_remembered_of_a_layout_is_right_for_other_tensors(told: Program) -> None:
    results = told("repeated_launches.py")
    assert {name: faults for name, (_, faults) in results.items() if faults} == {}
    assert [name for name, (count, _) in results.items() if not count] == ["collective"]  # which wants ranks


@pytest.fixture
def wanted() -> Specialization:
    kernel = SimpleNamespace(cache_key="key", __name__="kernel")
    return Specialization(kernel, {}, {}, frozenset(), Tile(90, {}), 90)


def test_a_compiled_kernel_is_read_as_it_was_written() -> None:
    assert Compiled.from_bytes(CODE.to_bytes()) == CODE


def test_a_kernel_is_looked_for_where_images_have_it_and_in_the_cache(
    wanted: Specialization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    named, cache = tmp_path / "named", tmp_path / "cache"
    image = tmp_path / "image" / "share" / "slipway" / "kernels"
    monkeypatch.setenv("SLIPWAY_KERNELS", str(named))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "image"))
    monkeypatch.setenv("SLIPWAY_CACHE", str(cache))
    monkeypatch.setattr(compiled, "compile_for", lambda one: (CODE, {}))
    with caplog.at_level(logging.WARNING, "slipway.kernels"):
        assert compiled.find(wanted) == CODE
    assert caplog.messages[0].startswith(f"Compiled kernel-{wanted.key} for sm_90 in ")
    assert caplog.messages[0].endswith(f"not in {named} nor in {image} nor in {cache / 'kernels'}.")
    assert not image.exists()
    assert not named.exists()
    monkeypatch.delattr(compiled, "compile_for")
    assert compiled.find(wanted) == CODE  # from the cache
    for folder, name in ((image, "other"), (named, "third")):
        path = folder / compiled.place(wanted)
        path.parent.mkdir(parents=True)
        path.write_bytes(Compiled(name, 8, 0, 0, (), b"\x7fELF").to_bytes())
        assert compiled.find(wanted).name == name


def test_a_kernel_that_cannot_be_kept_is_used_all_the_same(
    wanted: Specialization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kernels").write_text("a file where the folder would be")
    monkeypatch.setenv("SLIPWAY_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "compile_for", lambda one: (CODE, {}))
    with caplog.at_level(logging.WARNING, "slipway.kernels"):
        assert compiled.find(wanted) == CODE
    assert "It is compiled again at the next start" in caplog.messages[1]
