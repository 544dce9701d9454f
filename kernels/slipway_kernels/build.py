"""Compile the CPU kernels into one shared library: `python -m slipway_kernels.build`.

The kernel bodies (`*.inl`) are compiled once per instruction set, each file with its own flags; the fastest
known that the processor runs is chosen at load. Only what changed is compiled again. The library is for the
machine that the compiler compiles for: with `CXX=aarch64-linux-gnu-g++` for ARM.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
LIBRARY = PACKAGE / "_cpu.so"
OBJECTS = PACKAGE.parents[1] / "build" / "kernels"

# -ffp-contract=off: whether a product and a sum become one rounding is written in the source, never
# left to the optimiser, so that every form of a kernel computes the same bits.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-Wall")
# GCC 12 takes the deliberately undefined operands of its own AVX-512 headers for mistakes.
ISA_FLAGS = ("-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-psabi")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX_VNNI = (*AVX2, "-mavxvnni")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
AVX512_VNNI = (*AVX512, "-mavx512vnni")
AVX512_BF16 = (*AVX512_VNNI, "-mavx512bf16")
X86 = {
    "isa_generic.cpp": (),
    "isa_avx2.cpp": AVX2,
    "isa_avxvnni.cpp": AVX_VNNI,
    "isa_avx512.cpp": AVX512,
    "isa_avx512vnni.cpp": AVX512_VNNI,
    "isa_avx512bf16.cpp": AVX512_BF16,
    "isa_amx.cpp": AVX512_BF16,  # what tiles do is written in assembler
}
ARM = {
    "isa_neon.cpp": (),
    "isa_neonbf16.cpp": ("-march=armv8.2-a+dotprod+bf16+i8mm",),
}
# zig, which compiles for macOS anywhere, takes features only by -mcpu; GCC 12 fails on its own header then.
APPLE = {**ARM, "isa_neonbf16.cpp": ("-mcpu=generic+dotprod+bf16+i8mm",)}
GENERIC: Mapping[str, tuple[str, ...]] = {"isa_generic.cpp": ()}


class BuildError(Exception):
    """The library could not be built; the message says why and what to do."""


def compiler() -> list[str]:
    """The C++ compiler's command line: `$CXX`, or g++, or clang++. Raises BuildError where there is none."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++"]
    for candidate in candidates:
        words = shlex.split(candidate)
        if words and shutil.which(words[0]):
            return words
    raise BuildError(
        f"No C++ compiler: {' and '.join(candidates)} not found. The CPU kernels need one; install g++ "
        "(Debian: apt-get install g++) or name a compiler in CXX, then run "
        "`python -m slipway_kernels.build`."
    )


def jobs() -> int:
    """Compilers that run at a time: `$MAX_JOBS`, or as many as there are cores. Raises BuildError."""
    given = os.environ.get("MAX_JOBS", "").strip()
    if not given:
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if not given.isdecimal() or int(given) == 0:
        raise BuildError(f"MAX_JOBS={given} is not a whole number of at least 1. Correct it or unset it.")
    return int(given)


def target_of(command: Sequence[str]) -> str:
    """What a compiler compiles for, such as `aarch64-linux-gnu`, in lower case. Raises BuildError."""
    return run([*command, "-dumpmachine"]).strip().lower()


def is_this_machine(target: str) -> bool:
    return target.startswith(f"{platform.machine().lower()}-") and platform.system().lower() in target


def isas_of(target: str) -> Mapping[str, tuple[str, ...]]:
    """The files of the target's instruction sets, with their flags."""
    machine, _, system = target.partition("-")
    if machine in ("x86_64", "amd64"):
        return X86
    if machine in ("aarch64", "arm64"):
        return APPLE if "darwin" in system or "macos" in system else ARM
    return GENERIC


def sources(target: str) -> list[Path]:
    """Every C++ file of the library for that target."""
    isas = isas_of(target)
    found = sorted(PACKAGE.glob("*/*.cpp"))
    return [path for path in found if not path.name.startswith("isa_") or path.name in isas]


def flags_of(source: Path, target: str = "") -> list[str]:
    """The compiler flags of one source file; those of an instruction set depend on the target."""
    isa = [*ISA_FLAGS, *isas_of(target)[source.name]] if source.name.startswith("isa_") else []
    return [*FLAGS, *isa, f"-I{PACKAGE / 'cpu'}"]


def build(library: Path | None = None, objects: Path = OBJECTS) -> Path:
    """Bring the library up to date and return its path. Raises BuildError.

    Objects for another machine lie in a folder of their own, as does their library unless it is given.
    Of several processes that build at once, one compiles and the others wait for it.
    """
    command = compiler()
    target = target_of(command)
    if not is_this_machine(target):
        objects = objects.with_name(f"{objects.name}-{target}")
        library = library or objects / LIBRARY.name
    library = library or LIBRARY
    objects.mkdir(parents=True, exist_ok=True)
    with (objects / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(command, target, library, objects)
    return library


def _build(command: Sequence[str], target: str, library: Path, objects: Path) -> None:
    headers = [*PACKAGE.glob("*/*.h"), *PACKAGE.glob("*/*.inl"), Path(__file__)]
    newest_header = max(path.stat().st_mtime for path in headers)
    compiled = {source: objects / f"{source.parent.name}_{source.stem}.o" for source in sources(target)}
    stale = [
        (source, made)
        for source, made in compiled.items()
        if not made.exists() or made.stat().st_mtime < max(source.stat().st_mtime, newest_header)
    ]
    with ThreadPoolExecutor(max_workers=jobs()) as pool:
        runs = pool.map(
            lambda pair: run([*command, *flags_of(pair[0], target), "-c", str(pair[0]), "-o", str(pair[1])]),
            stale,
        )
        list(runs)
    newest_object = max(made.stat().st_mtime for made in compiled.values())
    if not library.exists() or library.stat().st_mtime < newest_object:
        # Linked beside and moved into place: a running server keeps the library that it has mapped.
        fresh = library.with_name(f"{library.name}.{os.getpid()}")
        library.parent.mkdir(parents=True, exist_ok=True)
        run([*command, "-shared", "-pthread", *map(str, compiled.values()), "-o", str(fresh)])
        fresh.replace(library)


def run(command: list[str]) -> str:
    """Run the compiler and return what it prints; raises BuildError with its errors."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(
            f"The compiler failed on the CPU kernels: {shlex.join(command)}\n{result.stderr.strip()}"
        )
    return result.stdout


if __name__ == "__main__":
    try:
        print(build())
    except BuildError as error:
        raise SystemExit(str(error)) from None
