"""Every kernel against its reference, and timed beside torch's: the stage `kernels`.

On a machine without a GPU it runs the small cases in the interpreter: whether they are right is known then,
how fast they are is not, and no time is written.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from pathlib import Path

import torch
from device import DEVICE
from table import Rows

from slipway_kernels.cuda.ahead import cases_of, operations
from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.launch import arch_of
from slipway_kernels.cuda.measure import Ceilings, ceilings, seconds


def correctness(case: Case) -> dict[str, object]:
    """The largest difference from the reference, relative to max(1, |expected|), and whether it may be."""
    if case.expected is None:
        case.run()
        return {}
    expected = case.expected().float()
    result = case.run().float()
    error = (
        ((result - expected).abs() / expected.abs().clamp(min=1)).max().item() if expected.numel() else 0.0
    )
    same_gaps = bool(torch.equal(result.isnan(), expected.isnan()))
    return {"error": error, "correct": same_gaps and error <= case.tolerance}


def timed(case: Case, limits: Ceilings) -> dict[str, object]:
    """Microseconds, rates, the share of the ceiling that bounds the case, and the peers' times."""
    took = seconds(case.run, variants=case.variants)
    peak = limits.fp8 if "fp8" in case.name and limits.fp8 else limits.bf16
    bound = max(case.bytes / limits.bandwidth, case.flops / peak)
    fields: dict[str, object] = {"us": took * 1e6}
    if case.bytes:
        fields["GB/s"] = case.bytes / took / 1e9
    if case.flops:
        fields["TFLOP/s"] = case.flops / took / 1e12
    if bound:
        fields["of ceiling"] = bound / took
    for name, peer in case.peers.items():
        try:
            fields[f"{name} us"] = seconds(peer) * 1e6
        except (RuntimeError, NotImplementedError, ValueError) as error:
            fields[f"{name} us"] = None
            fields[f"{name} failed"] = str(error).splitlines()[0][:120]
    return fields


def found(names: list[str]) -> Iterator[tuple[str, Case]]:
    size: Size = "full" if DEVICE.type == "cuda" else "small"
    for name in names:
        for case in cases_of(name)(DEVICE, size):
            if case.arch <= arch_of(DEVICE):
                yield name, case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=500, help="seconds after which no case is begun")
    parser.add_argument("--only", nargs="*", default=list(operations()), help="operations")
    arguments = parser.parse_args()
    rows = Rows(arguments.out, "kernels", arguments.deadline)
    limits = ceilings() if DEVICE.type == "cuda" else None
    if limits:
        rows.add(
            ceiling_TB_s=limits.bandwidth / 1e12,
            ceiling_bf16_TFLOP_s=limits.bf16 / 1e12,
            ceiling_fp8_TFLOP_s=limits.fp8 / 1e12,
        )
    wrong = 0
    for name, case in found(arguments.only):
        if rows.late:
            rows.add(cut_off_at=f"{name} {case.name}")
            break
        fields: dict[str, object] = {"op": name, "case": case.name}
        try:
            fields |= correctness(case)
            if limits:
                fields |= timed(case, limits)
        except Exception as error:  # one kernel that fails must not cost the rest of the table
            fields |= {"correct": False, "failed": f"{type(error).__name__}: {error}"[:300]}
        wrong += fields.get("correct") is False
        rows.add(**fields)
        del case
        gc.collect()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
