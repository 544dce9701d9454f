"""The CPU benchmarks: what this machine can do, and Slipway beside other servers on it. `make bench`

    python bench/cpu.py [--llama FOLDER] [--vllm FOLDER] [--only CASE ...] [--rounds 5]

FOLDER holds the programs llama-server and llama-quantize, or vllm. Without them only Slipway is measured, and
K-quant models are skipped. Each machine has one file of results in bench/results/cpu; a new measurement
replaces the old one. The script then rewrites bench/cpu.md from all files. --page skips the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cpu_page

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "cpu"
THREADS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Case:
    """A model and what is asked of its servers."""

    name: str
    shape: str
    """Of `models.SHAPES`."""
    form: str
    """As llama.cpp names it; bf16 stays as it is drawn."""
    scenarios: str
    streams: int
    """At a time at most."""
    peers: tuple[str, ...]


CASES = (
    Case("135 M, bf16", "135m", "bf16", "single,ttft,prefix,c8,c32", 32, ("llama.cpp", "vLLM")),
    Case("1.1 B, bf16", "1b", "bf16", "single,ttft,prefix,c8", 8, ("llama.cpp", "vLLM")),
    Case("1.1 B, Q4_K_M", "1b", "Q4_K_M", "single,ttft,prefix,c8", 8, ("llama.cpp",)),
    Case("1.1 B, Q6_K", "1b", "Q6_K", "single,ttft,c8", 8, ("llama.cpp",)),
    Case("1.1 B, IQ4_XS", "1b", "IQ4_XS", "single,ttft,c8", 8, ("llama.cpp",)),
    Case("1.1 B, MXFP4", "1b", "MXFP4", "single,ttft,c8", 8, ("llama.cpp",)),
)


def of_processor(field: str) -> str:
    """A line of /proc/cpuinfo."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def machine() -> dict[str, object]:
    """What tells this machine from others."""
    from slipway_kernels.cpu import isa

    name = of_processor("model name") or platform.machine()
    telling = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimddp", "i8mm", "bf16")
    flags = {*of_processor("flags").split(), *of_processor("Features").split()}
    family = filter(None, map(of_processor, ("cpu family", "model\t", "CPU implementer", "CPU part")))
    return {
        "processor": name,
        "family and model": "-".join(family),
        "flags": [flag for flag in telling if flag in flags],
        "instruction set": isa(),
        "threads": THREADS,
        "memory, GiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
    }


def model_of(case: Case, folder: Path, llama: Path | None) -> Path | None:
    """Its GGUF file; none without the quantizer that makes it."""
    import models

    if case.form == "bf16":
        return models.plain_gguf(folder, case.shape)
    return models.quantized_gguf(folder, case.shape, case.form, llama / "llama-quantize") if llama else None


def ours(case: Case, model: Path) -> str:
    streams = f"--max-model-len 2048 --max-num-seqs {case.streams} --disable-log-requests"
    return f"{sys.executable} -m slipway serve {model} --port {{port}} {streams}"


def llama_cpp(case: Case, model: Path, folder: Path) -> str:
    streams = f"-np {case.streams} -c {case.streams * 1024}"
    # Where there are tiles, repacking integers for them never ended (llama-cpp-python 0.3.36).
    repacks = case.form == "bf16" or "amx_tile" not in of_processor("flags").split()
    options = streams if repacks else f"{streams} --no-repack"
    return f"{folder}/llama-server -m {model} --port {{port}} -t {THREADS} -tb {THREADS} {options}"


def vllm(case: Case, checkpoint: Path, folder: Path) -> str:
    """As its guide for CPUs tunes it: a thread bound to each core, tcmalloc and Intel's OpenMP."""
    wanted = (
        *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"),
        *(folder.parent / "lib").glob("libiomp5.so"),
    )
    environ = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "LD_PRELOAD": ":".join(map(str, wanted)),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "HF_HUB_OFFLINE": "1",
    }
    words = " ".join(f"{name}={value}" for name, value in environ.items())
    options = f"--dtype bfloat16 --max-model-len 2048 --max-num-seqs {case.streams}"
    return f"env -u PYTHONPATH {words} {folder}/vllm serve {checkpoint} --port {{port}} {options}"


def servers_of(case: Case, model: Path, folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Names and commands."""
    yield "Slipway", ours(case, model)
    if "llama.cpp" in case.peers and given.llama:
        yield "llama.cpp", llama_cpp(case, model, given.llama)
    if "vLLM" in case.peers and given.vllm:
        import models

        yield "vLLM", vllm(case, models.checkpoint(folder, case.shape), given.vllm)


def output_of(*command: str) -> str:
    return subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def compared(case: Case, servers: dict[str, str], rounds: int) -> dict[str, object]:
    """All alive, in turns; each round with processes of its own, but for vLLM, which starts for minutes."""
    fresh = [] if "vLLM" in servers else ["--fresh"]
    with tempfile.NamedTemporaryFile(suffix=".json") as kept:
        output_of(
            str(HERE / "side_by_side.py"),
            *("--model", case.name, "--rounds", str(rounds), "--scenarios", case.scenarios),
            *("--json", kept.name, *fresh),
            *(word for name, command in servers.items() for word in ("--server", f"{name}={command}")),
        )
        figures = json.loads(Path(kept.name).read_text())
    return {"day": time.strftime("%Y-%m-%d"), "commit": commit(), "fresh": bool(fresh), "figures": figures}


def commit() -> str:
    """Of what is measured, marked where it has changes."""
    git = ["git", "-C", str(HERE.parent)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, stdout=subprocess.PIPE)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "kernels", "runtime"], check=False)
    return name.stdout.decode().strip() + ("-dirty" if changed.returncode else "")


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--llama", type=Path, metavar="FOLDER")
    parser.add_argument("--vllm", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="*", choices=[case.name for case in CASES])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", type=Path, default=HERE.parent / "build" / "bench-models")
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    if not arguments.page:
        measure(arguments)
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    (HERE / "cpu.md").write_text(cpu_page.page(results))


def measure(arguments: argparse.Namespace) -> None:
    """Into the file of this machine, case by case."""
    found = machine()
    path = RESULTS / f"{found['family and model']}-{found['instruction set']}.json"
    result = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    result["machine"] = found
    result["limits"] = json.loads(output_of(str(HERE / "limits.py")))
    steps = output_of(str(HERE / "core_loop.py")).splitlines()
    result["core loop"] = [json.loads(step) for step in steps]
    RESULTS.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if arguments.only is not None and case.name not in arguments.only:
            continue
        if model := model_of(case, arguments.models, arguments.llama):
            servers = dict(servers_of(case, model, arguments.models, arguments))
            result["cases"][case.name] = compared(case, servers, arguments.rounds)
            path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
