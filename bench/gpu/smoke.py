"""What must be right before anything is timed: chosen kernels, and small models forced to the same tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

from device import CUDA, DEVICE
from invariance import check
from kernel_rows import correctness
from stage import Part, run
from table import Rows

from slipway_kernels.cuda.ahead import cases_of
from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.launch import arch_of

KERNELS = {
    "ngram": r"look up (1|64) requests of 2048",
    "quantize": r"rows (1|64|2048)x\d+ float8_e4m3fn by 128",
    "linear_bf16": r"bfloat16 (1|8)x4096x4096",
    "linear_w4a16": r"(1|8|64)x4096x28672, 4 bits by 128, bfloat16",
}
"""By operation, cases by name: lookup of n-grams, quantization by groups, and split-K products."""
MOST = 4
"""Cases of each operation."""
AXES = {"int4": ("without graphs",), "fp8": ("chunks of 64", "without graphs")}
if not CUDA:
    AXES = dict.fromkeys(AXES, ("chunks of 5",))


def chosen(patterns: Mapping[str, str], most: int) -> Iterator[tuple[str, Case]]:
    """Cases of these names, so many of each operation; without a GPU the first small one."""
    size: Size = "full" if CUDA else "small"
    for operation, pattern in patterns.items():
        found = (
            case
            for case in cases_of(operation)(DEVICE, size)
            if case.arch <= arch_of(DEVICE) and (not CUDA or re.fullmatch(pattern, case.name))
        )
        for case in islice(found, most if CUDA else 1):
            yield operation, case


def kernels(rows: Rows) -> bool:
    right = True
    for operation, case in chosen(KERNELS, MOST):
        found = correctness(case)
        right &= found.get("correct") is not False
        rows.add(op=operation, case=case.name, **found)
    return right


def parts() -> dict[str, Part]:
    int4, fp8 = (partial(check, kind, only=axes) for kind, axes in AXES.items())
    return {"kernels": kernels, "int4": int4, "fp8": fp8}


if __name__ == "__main__":
    raise SystemExit(run("smoke", parts(), __doc__))
