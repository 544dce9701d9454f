"""Every kernel against its reference, and timed beside torch's: the stage `kernels`.

On a machine without a GPU it runs the small cases in the interpreter: whether they are right is known then,
how fast they are is not, and no time is written.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial

import torch
from device import CUDA, DEVICE
from figures import of_device, timed
from stage import Part, run
from table import Rows

from slipway_kernels.cuda.ahead import cases_of, operations
from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.cuda.compare import row_error
from slipway_kernels.cuda.launch import arch_of
from slipway_kernels.cuda.measure import Ceilings, ceilings, seconds

FIRST = ("attention", "linear_w4a16", "linear_w8a8", "linear_bf16", "moe", "sampling", "rope")
"""Operations in order of worth; the rest are one part, `others`."""


def correctness(case: Case) -> dict[str, object]:
    """The largest error of a row, and whether rounding explains it."""
    if case.expected is None:
        case.run()
        return {}
    expected = case.expected()
    error = row_error(case.run(), expected)
    return {"error": error, "correct": error <= case.tolerance}


def measured(operation: str, case: Case, limits: Ceilings | None) -> dict[str, object]:
    """A row: whether the case is right and, with the device's ceilings, how long it takes."""
    fields: dict[str, object] = {"op": operation, "case": case.name}
    try:
        fields |= correctness(case)
        if limits:
            fields |= timed(case, limits, seconds)
    except Exception as error:  # one kernel that fails must not cost the rest of the table
        fields |= {"correct": False, "failed": f"{type(error).__name__}: {error}"[:300]}
    return fields


def found(names: tuple[str, ...]) -> Iterator[tuple[str, Case]]:
    """Cases one at a time: the largest fill half of a device."""
    size: Size = "full" if CUDA else "small"
    for name in names:
        cases = cases_of(name)(DEVICE, size)
        while case := next(cases, None):
            if case.arch <= arch_of(DEVICE):
                yield name, case
            del case
            gc.collect()
            if CUDA:
                torch.cuda.empty_cache()


def check(names: tuple[str, ...], rows: Rows) -> bool:
    """All cases of these operations. Stops where the device answers no more."""
    limits = ceilings() if CUDA else None
    if limits:
        rows.add(**of_device(limits))
    right = True
    for name, case in found(names):
        if rows.late:
            rows.add(cut_off_at=f"{name} {case.name}")
            return False
        fields = measured(name, case, limits)
        right &= fields.get("correct") is not False
        rows.add(**fields)
        del case
        if CUDA:
            torch.cuda.synchronize()  # raises where a kernel has broken the device: what follows would lie
    return right


def parts() -> dict[str, Part]:
    others = tuple(name for name in operations() if name not in FIRST)
    groups = {name: (name,) for name in FIRST} | {"others": others}
    return {part: partial(check, names) for part, names in groups.items()}


if __name__ == "__main__":
    raise SystemExit(run("kernels", parts(), __doc__))
