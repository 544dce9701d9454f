"""The library's C interface, driven by a C program: on this machine, and on ARM by emulation."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipway_kernels.build import LIBRARY, PACKAGE, build, compiler
from slipway_kernels.cpu import isa

PROGRAM = Path(__file__).parent / "products.c"
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"
Digests = dict[str, str]
"""Of a form's results."""

needs_arm = pytest.mark.skipif(
    not (shutil.which(ARM_COMPILER) and shutil.which(ARM_EMULATOR)),
    reason=f"{ARM_COMPILER} or {ARM_EMULATOR} is missing: apt-get install g++-aarch64-linux-gnu qemu-user",
)


def compiled(command: Sequence[str], library: Path, folder: Path) -> Path:
    program = folder / "products"
    subprocess.run(
        [
            *(*command, "-x", "c", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{PACKAGE / 'cpu'}"),
            *(str(PROGRAM), "-x", "none", str(library), "-lm", f"-Wl,-rpath,{library.parent}"),
            *("-o", str(program)),
        ],
        check=True,
    )
    return program


def digests(*command: str | Path, name: str | None = None) -> tuple[str, Digests]:
    """The instruction set that a run used, and what it printed. It fails where batches change a row."""
    environ = os.environ | ({"SLIPWAY_CPU_ISA": name} if name else {})
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    first, *lines = run.stdout.splitlines()
    return first.removeprefix("isa "), {line.split()[0]: line.split()[1] for line in lines}


def test_rows_are_bit_identical_alone_and_in_batches_for_a_c_program(tmp_path: Path) -> None:
    used, found = digests(compiled(compiler(), LIBRARY, tmp_path))
    assert used == isa()
    assert {"fp32", "bf16", "int4-group32", "int8-row", "Q4_K"} <= found.keys()


@pytest.fixture(scope="module")
def arm_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", ARM_COMPILER)
        return compiled(compiler(), build(), tmp_path_factory.mktemp("arm"))


@needs_arm
@pytest.mark.slow  # it compiles every kernel for ARM, where that is not up to date
@pytest.mark.parametrize(
    ("processor", "named", "used"),
    [("cortex-a57", None, "neon"), ("max", "neon", "neon"), ("max", None, "neonbf16")],
)
def test_arm_has_the_bits_of_avx2_except_in_bf16_dot_products(
    arm_program: Path, tmp_path: Path, processor: str, named: str | None, used: str
) -> None:
    """Both add and multiply in one rounding and in the same order."""
    arm = digests(ARM_EMULATOR, "-L", ARM_LIBRARIES, "-cpu", processor, arm_program, name=named)
    assert arm[0] == used
    here = compiled(compiler(), LIBRARY, tmp_path)
    if digests(here)[0].startswith("avx"):
        wanted = digests(here, name="avx2")[1]
        differs = {form for form in wanted if arm[1][form] != wanted[form]}
        of_bf16 = {"bf16", "e4m3-group128", "e4m3-row"}
        assert differs == (of_bf16 if used == "neonbf16" else set())
