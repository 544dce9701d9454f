"""The kernels' threads and memory without Linux's calls, as they are compiled for macOS."""

from __future__ import annotations

import subprocess
from pathlib import Path

from e2e.ground.patience import scaled

from slipway_kernels.build import PACKAGE, compiler, flags_of

NAMES = ("cpu/pool.cpp", "cpu/affinity.cpp", "cpu/memory.cpp", "collective/ranks.cpp")
FILES = [PACKAGE / name for name in NAMES]


def test_threads_ranks_and_memory_work_without_the_calls_of_linux(tmp_path: Path) -> None:
    program = tmp_path / "portable"
    command = [*compiler(), *flags_of(FILES[0]), "-O1", "-DSLIPWAY_PORTABLE", "-o", str(program)]
    subprocess.run([*command, *map(str, FILES), str(Path(__file__).parent / "portable.cpp")], check=True)
    run = subprocess.run([program], capture_output=True, text=True, check=False, timeout=scaled(60))
    assert run.returncode == 0, run.stdout + run.stderr
    listed = subprocess.run(["nm", "--undefined-only", program], capture_output=True, text=True, check=True)
    used = {word.partition("@")[0] for word in listed.stdout.split()}
    assert not {"syscall", "sched_getcpu", "madvise"} & used
