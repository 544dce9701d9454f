"""Every instruction set that this processor has computes the references' results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway_kernels.cpu import isa

MACHINES = [
    ["generic", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"],
    ["generic", "avx2", "avxvnni"],
    ["neon", "neonbf16"],
]
OTHERS = [name for isas in MACHINES if isa() in isas for name in isas[: isas.index(isa())]]
CPU = Path("/proc/cpuinfo")
if isa().startswith(("avx512", "amx")) and "avx_vnni" in CPU.read_text():
    OTHERS.append("avxvnni")  # which only some of them have
if isa() == "avx512vnni" and "avx512_bf16" in CPU.read_text():
    OTHERS.append("avx512bf16")  # which must be named on Intel's
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_an_instruction_set_passes_every_kernel_test(name: str) -> None:
    files = [
        str(HERE / f"test_{part}.py")
        for part in (
            *("linear", "linear_quantized", "attention", "narrow_kv", "program", "draft_rows"),
            "encoder_operations",
        )
    ]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        env={**os.environ, "SLIPWAY_CPU_ISA": name},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    code = "from slipway_kernels.cpu import isa; isa()"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SLIPWAY_CPU_ISA": "avx1024"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "SLIPWAY_CPU_ISA=avx1024 cannot be had" in result.stderr
