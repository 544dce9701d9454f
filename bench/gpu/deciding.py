"""The kernels that decide how fast a model is, a few cases of each: right, and timed."""

from __future__ import annotations

import gc
from functools import partial

import torch
from device import CUDA
from kernel_rows import measured
from smoke import chosen
from stage import Part, run
from table import Rows

from slipway_kernels.cuda.measure import ceilings

KERNELS = {
    "attention": r"(decode (16|64|256) after (4096|16384)|chunk 512 of 8704) 32/8x128 e4m3",
    "linear_w4a16": r"(1|8|16|64)x(4096x28672|14336x4096), 4 bits by 128, bfloat16",
    "linear_w8a8": r"fp8 by blocks (1|64|2048)x(28672x4096|4096x14336)",
    "moe": r"Mixtral-8x7B (gate_up|down) (64|2048) (bf16|fp8)",
}
MOST = 8


def measure(operation: str, rows: Rows) -> bool:
    limits, right = ceilings() if CUDA else None, True
    for _, case in chosen({operation: KERNELS[operation]}, MOST):
        if rows.late:
            rows.add(op=operation, cut_off_at=case.name)
            return right
        fields = measured(operation, case, limits)
        right &= fields.get("correct") is not False
        rows.add(**fields)
        del case
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()
    return right


def parts() -> dict[str, Part]:
    return {operation: partial(measure, operation) for operation in KERNELS}


if __name__ == "__main__":
    raise SystemExit(run("kernels", parts(), __doc__))
