"""`slipway compile` in a process of its own, where kernels are not interpreted; the compiler is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

from factory import make_model

PROGRAM = """
import sys
from slipway.cli.main import main
from slipway_kernels.cuda import ahead
from slipway_kernels.cuda.compiled import Compiled, keep

def build(entry):
    s = entry.specialization
    if s.kernel.__name__ == refused:
        raise RuntimeError("no such instruction")
    keep(s, Compiled(s.kernel.__name__, s.tile.num_warps, 0, 0, (), b"code"))
    return {"registers": 32, "stack": 0, "shared": 0, "instructions": []}

refused, *words = sys.argv[1:]
ahead.build = build
raise SystemExit(main(["compile", *words]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("model") / "model", dtype="bfloat16")


def compiled(cache: Path, *words: str, refused: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, refused, *words],
        env=os.environ | {"TRITON_INTERPRET": "0", "SLIPWAY_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )


@pytest.mark.slow
def test_a_model_s_kernels_are_compiled_once_and_copied(model: Path, tmp_path: Path) -> None:
    words = (str(model), "--max-num-seqs", "8", "--max-num-batched-tokens", "32", "--arch", "90")
    done = compiled(tmp_path / "cache", *words, "--to", str(tmp_path / "image"))
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    count = int(last.split()[0])
    assert last == f"{count} of {count} kernels are compiled."
    assert first.endswith(f"compiling {count} of {count} kernels")
    kept, copied = (sorted(place.rglob("*.cubin")) for place in (tmp_path / "cache", tmp_path / "image"))
    assert len(kept) == len(copied) == count > 30
    assert {path.parent.relative_to(tmp_path / "image") for path in copied} == {Path("sm_90")}
    again = compiled(tmp_path / "cache", *words, refused="rms_norm_kernel")
    assert (again.returncode, again.stdout.splitlines()) == (0, [last])


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_is_named(model: Path, tmp_path: Path) -> None:
    words = (str(model), "--max-num-seqs", "2", "--max-num-batched-tokens", "8", "--arch", "90")
    done = compiled(tmp_path, *words, refused="rms_norm_kernel")
    assert done.returncode == 1
    assert "slipway compile: error: serving rms_norm_kernel sm_90" in done.stderr
    assert "RuntimeError: no such instruction" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arch", "70"], "argument --arch: 70 is none of 80, "),
        (["--arch", "90", "{model}"], "a model stands before --arch"),
        ([], "the following arguments are required: --arch"),
        (["missing/model", "--arch", "90"], "slipway compile: error: "),
        (["{model}", "--arch", "90", "--max-model-lenth", "5"], "--max-model-lenth"),
        (["{model}", "--arch", "90", "--tensor-parallel-size", "2"], "several devices"),
    ],
)
def test_input_that_cannot_be_understood_is_refused(
    words: list[str], said: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = compiled(tmp_path, *(word.format(model=model) for word in words))
    assert done.returncode == 2
    assert said in done.stderr
