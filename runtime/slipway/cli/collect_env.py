"""`slipway collect-env`: facts about this machine for a bug report, without secrets."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from slipway import __version__, envs

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "numpy",
    "msgspec",
    "fastapi",
    "pydantic",
    "uvicorn",
    "prometheus-client",
    "triton",
    "kubernetes",
    "kopf",
)
PREFIXES = ("VLLM_", "SLIPWAY_", "HF_", "HUGGING_FACE_", "OMP_", "CUDA_", "NCCL_", "TORCH_")
SECRET_WORDS = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL")
USER_OF_URL = re.compile(r"(?<=://)[^/\s@]+@")
CPU_FLAGS = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve"),
)
GIB = 1 << 30
Facts = Iterable[tuple[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There is nothing to choose."""


def run(arguments: argparse.Namespace) -> int:
    sections: dict[str, Facts] = {
        "Slipway": _software(),
        "Packages": _packages(),
        "Machine": _machine(),
        "Devices": _devices(),
        "Environment": environment(os.environ),
    }
    for title, facts in sections.items():
        listed = list(facts) or [("none", "")]
        width = max(len(name) for name, _ in listed)
        print(f"{title}:")
        for name, fact in listed:
            print(f"  {name:<{width}}  {fact}".rstrip())
    return 0


def environment(environ: Mapping[str, str]) -> Facts:
    """Variables that concern the server; a value that is or may be a secret is shown as ***."""
    for name in sorted(environ):
        variable = envs.BY_NAME.get(name)
        if variable is None and not name.startswith(PREFIXES):
            continue
        secret = variable.secret if variable else bool(SECRET_WORDS.search(name))
        yield name, "***" if secret else USER_OF_URL.sub("***@", environ[name])


def _software() -> Facts:
    yield "version", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    yield "libc", " ".join(platform.libc_ver())
    for compiler in ("g++", "clang++"):
        if path := shutil.which(compiler):
            yield compiler, _first_line([path, "--version"])
    yield "kernels", _kernels()


def _kernels() -> str:
    """Whether the compiled kernels are there, and for which instruction set."""
    spec = find_spec("slipway_kernels")
    if spec is None or spec.origin is None:
        return "not installed"
    if not list(Path(spec.origin).parent.glob("*.so")):
        return "not compiled: python -m slipway_kernels.build"
    # In a process of its own: a library that does not fit this processor must not end the report.
    asked = "from slipway_kernels.cpu.binding import isa; print(isa())"
    return f"compiled; instruction set {_first_line([sys.executable, '-c', asked])}"


def _packages() -> Facts:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"


def _machine() -> Facts:
    from slipway.machine import available_memory, usable_cpus

    described = _cpu()
    yield "processor", described.get("model name", platform.machine())
    flags = set(described.get("flags", described.get("Features", "")).split())
    yield "instructions", " ".join(flag for flag in CPU_FLAGS if flag in flags) or "none beyond the base"
    affinity = len(os.sched_getaffinity(0))
    yield "cores", f"{os.cpu_count()}, {affinity} by affinity, {usable_cpus()} with the cgroup's quota"
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = available_memory()
    yield "memory", f"{total / GIB:.1f} GiB, {free / GIB:.1f} GiB available under the cgroup's limit"
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    yield "/dev/shm", f"{shm.total / GIB:.1f} GiB" if shm else "absent"
    yield "huge pages", _chosen(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    where = "/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io"
    found = [path for path in where if Path(path).exists()]
    yield "container", ", ".join(found) or "no sign of one"


def _devices() -> Facts:
    if path := shutil.which("nvidia-smi"):
        query = [path, "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
        for index, line in enumerate(_lines(query)):
            yield f"gpu {index}", line


def _cpu() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _chosen(path: Path) -> str:
    """The word in brackets of a file such as `always [madvise] never`."""
    try:
        found = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        return "unknown"
    return found[1] if found else "unknown"


def _first_line(command: list[str]) -> str:
    return next(iter(_lines(command)), "unknown")


def _lines(command: list[str]) -> list[str]:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return ran.stdout.splitlines()
