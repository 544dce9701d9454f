"""The plan of quarter_hour.sh: two calls on a machine with one H100 or H200, 15 minutes in all.

A start of the machine is given 75 s in each call, and is not ours. A call is cut off after 600 s at most.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
from pathlib import Path

from timed import Group, Plan, carry_out

HERE = Path(__file__).parent
START = 75.0
"""Seconds of a machine's start, and QUARTER_HOUR of both calls with their starts."""
QUARTER_HOUR = 900.0
REHEARSAL = 60.0
"""Times that a limit is longer in the interpreter."""

PLANS = {
    1: Plan(
        (
            Group("compile", HERE / "carried.py", {"carried": 10, "call 1": 35}),
            Group("smoke", HERE / "smoke.py", {"kernels": 12, "int4": 15, "fp8": 18}),
            Group(
                "engine",
                HERE / "form.py",
                {
                    **{"fp8:start": 35, "fp8:decode": 28, "fp8:2048/128": 25, "fp8:1000/1000": 50},
                    **{"fp8:switches": 60, "fp8:profile": 12},  # the profiler stays loaded: it is last
                },
            ),
            Group("engine", HERE / "form.py", {"bf16:start": 30, "bf16:decode": 30}),
            Group(
                "engine", HERE / "form.py", {"bf16 more:start": 25, "bf16 more:128/128": 30}, optional=True
            ),
        ),
        375,
    ),
    2: Plan(
        (
            Group("compile", HERE / "carried.py", {"carried": 10, "call 2": 35}),
            Group("http", HERE / "serving.py", {"serve": 110}),
            Group(
                "kernels",
                HERE / "deciding.py",
                {"attention": 28, "linear_w4a16": 28, "linear_w8a8": 28, "moe": 28},
            ),
            Group("engine", HERE / "form.py", {"awq:start": 53, "awq:decode": 15}),
        ),
        340,
    ),
}
"""By call. An H200 took 20 s for an fp8 start, 40 s to write and read an AWQ checkpoint, and 80 s for a
million tokens of 1000/1000 (bench/results/2026-11-27-h200.md)."""
if sum(START + plan.seconds for plan in PLANS.values()) > QUARTER_HOUR:
    raise ValueError("both calls and their starts take more than a quarter of an hour")


def has_device() -> bool:
    """Whether a CUDA device can be used, asked without torch."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("call", type=int, choices=PLANS)
    parser.add_argument("group", nargs="*", help="default: all")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if importlib.util.find_spec("msgspec") is None:
        parser.error("there is no msgspec: take build/gpu-packages along, which bench/gpu/packages.sh makes")
    plan = PLANS[arguments.call]
    names = [group.name for group in plan.groups]
    for name in arguments.group:
        if name not in names:
            parser.error(f"call {arguments.call} has no group {name}, only {', '.join(dict.fromkeys(names))}")
    if arguments.group:
        plan = Plan([group for group in plan.groups if group.name in arguments.group], plan.seconds)
    if not has_device():
        plan = plan.slower(REHEARSAL)
    os.environ.setdefault("SLIPWAY_KERNELS", str(Path("build/gpu-kernels").resolve()))
    return 1 if carry_out(plan, arguments.out) else 0


if __name__ == "__main__":
    raise SystemExit(main())
