"""The CPU benchmarks: this machine's limits, the core loop, and servers side by side.

    python bench/cpu.py [--model MODEL] [--server NAME=COMMAND ...] [--write bench/cpu.md]

Without --server it measures Slipway alone on the demo model. Other servers are given as commands with
{model} and {port}; the first server of the table is always Slipway, and ratios are Slipway's to theirs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OURS = f"{sys.executable} -m slipway serve {{model}} --port {{port}} --dtype bfloat16 --disable-log-requests"


def output_of(*command: str) -> str:
    return subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def limits_table(limits: dict[str, object]) -> str:
    rows = limits["bf16"]
    assert isinstance(rows, list)
    lines = ["| M | our GB/s | torch GB/s | our GFLOP/s | torch GFLOP/s |", "| ---: |" + " ---: |" * 4]
    for row in rows:
        figures = (row["M"], row["GB_s"], row["torch_GB_s"], row["GFLOP_s"], row["torch_GFLOP_s"])
        lines.append("| " + " | ".join(map(str, figures)) + " |")
    return "\n".join(lines)


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--scenarios", default="single,singles,ttft,prefix,c8,c8s,c32,c32s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, help="write the page there instead of printing it")
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        from slipway.load.demo import fetch

        model = str(fetch())
    servers = [f"slipway={OURS}", *arguments.server]
    limits = json.loads(output_of(str(HERE / "limits.py")))
    core = json.loads(output_of(str(HERE / "core_loop.py")))
    side = output_of(
        str(HERE / "side_by_side.py"),
        *("--model", model, "--rounds", str(arguments.rounds), "--scenarios", arguments.scenarios),
        *(word for server in servers for word in ("--server", server)),
    )
    command = shlex.join(["python", "bench/cpu.py", *sys.argv[1:]])
    page = f"""{Path(model).name}, {datetime.date.today()}, {processor()}, {limits["threads"]} threads

    {command}

{side}
Reading memory: {limits["read_GB_s"]} GB/s. Core loop at {core["requests"]} requests: {core["step_ms"]} ms
a step. Products y[M, 8192] = x[M, 2048] · Wᵀ in bf16, weights from memory:

{limits_table(limits)}
"""
    if arguments.write:
        arguments.write.write_text(page)
    else:
        print(page)


if __name__ == "__main__":
    main()
