"""Building the CPU kernels."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from slipway_kernels.build import BuildError, is_this_machine, jobs, sources, target_of


def test_max_jobs_says_how_many_compilers_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "3")
    assert jobs() == 3
    for unset in ("", " "):
        monkeypatch.setenv("MAX_JOBS", unset)
        assert jobs() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("text", ["0", "-1", "all"])
def test_another_number_of_jobs_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MAX_JOBS", text)
    with pytest.raises(BuildError, match=f"MAX_JOBS={text} is not a whole number of at least 1"):
        jobs()


COMPILER = f"""#!/bin/sh
[ "$1" = -dumpmachine ] && echo {platform.machine()}-linux-gnu && exit
mkdir "$ONLY_ONE" || exit 9
for word in "$@"; do output=$word; done
: >"$output"
rmdir "$ONLY_ONE"
"""
BUILD = """
import sys
from pathlib import Path
from slipway_kernels.build import build
build(Path(sys.argv[1], "library.so"), Path(sys.argv[1], "objects"))
"""


def test_builds_of_several_processes_take_turns(tmp_path: Path) -> None:
    """By a compiler that fails where another one runs."""
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    environ = os.environ | {"CXX": str(compiler), "MAX_JOBS": "1", "ONLY_ONE": str(tmp_path / "one")}
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    builds = [subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(build.communicate()[1], build.returncode) for build in builds] == [("", 0)] * 3
    assert (tmp_path / "library.so").exists()


def test_the_compiler_decides_for_which_machine_the_library_is() -> None:
    targets = ("x86_64-linux-gnu", "arm64-apple-darwin23", "riscv64-linux-gnu")
    named = [{path.name for path in sources(target)} for target in targets]
    assert [{name for name in files if name.startswith("isa_")} for files in named] == [
        {
            f"isa_{name}.cpp"
            for name in ("generic", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx")
        },
        {"isa_neon.cpp", "isa_neonbf16.cpp"},
        {"isa_generic.cpp"},
    ]
    assert is_this_machine(target_of(["echo", f"{platform.machine()}-linux-gnu"]))
    assert not is_this_machine("arm64-apple-darwin23")
