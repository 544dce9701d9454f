"""CUDA's own files, where the environment names them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.engine.cuda_files import use_given
from slipway.envs import read
from slipway.exits import Exit

AFTER = """
import json, os
from slipway.engine.cuda_files import use_given
from slipway.envs import read
use_given(read(os.environ))
found = {name: os.environ.get(name) for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")}
print(json.dumps(found | {"mapped": os.environ["VLLM_CUDART_SO_PATH"] in open("/proc/self/maps").read()}))
"""


def library() -> str:
    """Some shared library of this machine."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(path for line in lines if "libm.so" in (path := line.split()[-1]))


def test_the_runtime_is_loaded_and_triton_told_of_the_assembler(tmp_path: Path) -> None:
    runtime = tmp_path / "libcudart.so.12"
    shutil.copy(library(), runtime)
    ptxas = tmp_path / "bin" / "ptxas"
    ptxas.parent.mkdir()
    ptxas.write_text("#!/bin/sh\n")
    ptxas.chmod(0o755)
    given = {"VLLM_CUDART_SO_PATH": str(runtime), "CUDA_HOME": str(tmp_path), "TRITON_PTXAS_PATH": "/mine"}
    done = subprocess.run(
        [sys.executable, "-c", AFTER], env=os.environ | given, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "TRITON_PTXAS_PATH": "/mine",
        "TRITON_PTXAS_BLACKWELL_PATH": str(ptxas),
        "mapped": True,
    }


def test_a_runtime_that_cannot_be_loaded_ends_the_start_in_a_sentence() -> None:
    with pytest.raises(Exit, match=r"VLLM_CUDART_SO_PATH=/absent\.so cannot be loaded") as caught:
        use_given(read({"VLLM_CUDART_SO_PATH": "/absent.so"}))
    assert caught.value.exit_code.code == 2


def test_nccl_is_loaded_where_it_is_named(tmp_path: Path) -> None:
    nccl = tmp_path / "libnccl.so.2"
    shutil.copy(library(), nccl)
    program = AFTER.replace("VLLM_CUDART_SO_PATH", "VLLM_NCCL_SO_PATH")
    given = {"VLLM_NCCL_SO_PATH": str(nccl)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | given, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["mapped"]
    with pytest.raises(Exit, match=r"VLLM_NCCL_SO_PATH=/absent\.so cannot be loaded"):
        use_given(read({"VLLM_NCCL_SO_PATH": "/absent.so"}))


def test_a_toolkit_without_an_assembler_is_told_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(os.environ)
    use_given(read({"CUDA_HOME": str(tmp_path)}))
    assert f"CUDA_HOME={tmp_path} has no bin/ptxas" in caplog.text
    assert dict(os.environ) == before
