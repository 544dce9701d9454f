"""What is compiled ahead is what a launch through Triton would compile, and what launches look for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from e2e.ground.patience import scaled

from slipway_kernels.cuda import ahead
from slipway_kernels.cuda.specialization import Specialization
from slipway_kernels.cuda.tiles import ARCHITECTURES, Tile

PROGRAM = """
import sys
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from slipway_kernels.cuda import ahead, compiled as store, launch
from slipway_kernels.cuda.specialization import recording

class Hopper:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

def noted(source, options):
    return source.hash(), make_backend(driver.active.get_current_target()).parse_options(dict(options)).hash()

def compiled(source, target, options):
    built.add(noted(source, options))
    raise KeyboardInterrupt  # known by its name: the compiler need not run

def do_compile(self, key, *rest):
    signature, _, constants, options, attributes = [one for one in rest if not isinstance(one, GPUTarget)][:5]
    sought.add(noted(ASTSource(self, signature, constants, attributes), options.__dict__))

def warm(kernel, grid, *args, tile, **constants):
    options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=tile.fuses)
    kernel.warmup(*args, grid=grid, **{**tile.constants, **constants}, **options)

built, sought = set(), set()
driver.set_active(Hopper())
store.triton.compile = compiled
JITFunction._do_compile = do_compile
operation = sys.argv[1]
for entry in ahead.entries(operation, [90]):
    try:
        ahead.build(entry)
    except KeyboardInterrupt:
        pass
for module in list(sys.modules.values()):
    if getattr(module, "launch", None) is launch.launch and module is not launch:
        module.launch = warm
with recording(90):
    for case in ahead.cases_of(operation)(torch.device("meta"), "full"):
        if case.arch <= 90:
            case.run()
print(len(built), len(sought), len(sought - built))
"""


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["rms_norm", "attention", "linear_w4a16"])
def test_a_launch_finds_what_was_compiled_ahead(operation: str) -> None:
    """Under a driver that says it is a Hopper GPU's and starts nothing."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, operation],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert found.returncode == 0, found.stderr
    built, sought, missing = map(int, found.stdout.split())
    assert sought == built > 0
    assert missing == 0


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ahead.Entry]:
    """Two kernels for every architecture, as a run meets them, and an empty cache."""
    found = []
    for arch in ARCHITECTURES:
        for name in ("one", "two"):
            kernel = SimpleNamespace(cache_key=name, __name__=name)
            wanted = Specialization(kernel, {}, {}, frozenset(), Tile(arch, {}), arch)
            found.append(ahead.Entry("toy", wanted, ("a case",), frozenset()))
    monkeypatch.setenv("SLIPWAY_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["ahead", "toy", "--jobs", "2"])
    monkeypatch.setattr(ahead, "entries", lambda operation, architectures: found)
    return found


def compiled(**more: object) -> dict[str, object]:
    return {"registers": 32, "stack": 0, "shared": 0, "instructions": [], **more}


def test_a_process_compiles_for_one_architecture(
    kernels: list[ahead.Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compiler keeps from one architecture must not reach another: Triton 3.6 keeps conversions."""
    monkeypatch.setattr(ahead, "build", lambda entry: compiled(process=os.getpid()))
    ahead.compile_all(kernels, jobs=1)
    seen = defaultdict(set)
    for entry in kernels:
        seen[json.loads(entry.result.read_text())["process"]].add(entry.specialization.arch)
    assert sorted(seen.values(), key=min) == [{arch} for arch in ARCHITECTURES]
    assert os.getpid() not in seen


def test_a_kernel_that_failed_is_compiled_again(
    kernels: list[ahead.Entry], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(entry: ahead.Entry) -> dict[str, object]:
        if entry.key == kernels[0].key:
            os.write(1, b"a line of PTX\n" * 1000)
            raise RuntimeError("no such instruction")
        return compiled()

    monkeypatch.setattr(ahead, "build", refuse)
    assert ahead.main() == 1
    first = capfd.readouterr().out
    assert "RuntimeError: no such instruction" in first
    assert str(kernels[0].log) in first
    assert "a line of PTX" not in first
    assert kernels[0].log.read_text().count("a line of PTX") == 1000
    monkeypatch.setattr(ahead, "build", lambda entry: compiled())
    assert ahead.main() == 0
    assert not kernels[0].log.exists()


def test_a_compiler_that_dies_is_a_failure_of_one_kernel(
    kernels: list[ahead.Entry], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def die(entry: ahead.Entry) -> dict[str, object]:
        if entry.key == kernels[0].key:
            os.kill(os.getpid(), signal.SIGKILL)
        return compiled()

    monkeypatch.setattr(ahead, "build", die)
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--jobs", "1"])
    assert ahead.main() == 1
    shown = capfd.readouterr().out
    assert f"the compiler ended with status {-signal.SIGKILL}" in shown
    assert f"{len(kernels)} kernels, {len(kernels)} compiled now, 1 failed" in shown


def entries_of(operation: str, count: int) -> list[ahead.Entry]:
    """Kernels of an operation, for every architecture."""
    made = []
    for number in range(count):
        kernel = SimpleNamespace(cache_key=f"{operation}{number}", __name__=f"{operation}{number}")
        for arch in ARCHITECTURES:
            wanted = Specialization(kernel, {}, {}, frozenset(), Tile(arch, {}), arch)
            made.append(ahead.Entry(operation, wanted, ("a case",), frozenset()))
    return made


def keys(entries: Iterable[ahead.Entry]) -> list[str]:
    return [entry.key for entry in entries]


def test_a_sample_is_the_seeds_in_the_kernels_order() -> None:
    found = entries_of("toy", 40)
    chosen = ahead.sample(found, 12, "one")
    assert len(chosen) == 12
    assert keys(chosen) == [key for key in keys(found) if key in {*keys(chosen)}]
    assert keys(ahead.sample(found, 12, "one")) == keys(chosen)
    assert keys(ahead.sample(found, 12, "two")) != keys(chosen)
    assert keys(ahead.sample(found, 1000, "one")) == keys(found)


def test_another_triton_gets_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = entries_of("toy", 40)
    chosen = {entry.title for entry in ahead.sample(found, 12, "one")}
    monkeypatch.setattr(ahead.triton, "__version__", "3.5.9")
    assert {entry.title for entry in ahead.sample(found, 12, "one")} != chosen


def test_a_sample_comes_with_whole_operations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIPWAY_CACHE", str(tmp_path))
    made = {name: entries_of(name, 8) for name in ("moe", "lora")}
    monkeypatch.setattr(ahead, "entries", lambda operation, architectures: made[operation])
    monkeypatch.setattr(ahead, "unreached", lambda operation, seen: [])
    monkeypatch.setattr(ahead, "build", lambda entry: compiled())
    words = ("moe", "lora", "--sample", "5", "--seed", "one", "--whole", "lora")
    monkeypatch.setattr(sys, "argv", ["ahead", *words])
    assert ahead.main() == 0
    count = len(made["lora"])
    assert f"{count + 5} of {2 * count} kernels, {count + 5} compiled now, 0 failed" in capfd.readouterr().out
    assert all(entry.result.exists() for entry in made["lora"])
    monkeypatch.setattr(sys, "argv", ["ahead", *words, "--most", "4"])
    assert ahead.main() == 0
    assert f"9 of {2 * count} kernels" in capfd.readouterr().out
