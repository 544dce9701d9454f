"""How long a call takes on the device, and what the device can do at best."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

_FLUSH_BYTES = 256 << 20
"""Written between calls, so that none finds its operands in the second-level cache."""
_WARM = 3


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device reached in the same run.

    bandwidth  bytes a second of a kernel that reads and writes
    bf16, fp8  FLOP/s of cuBLAS on 8192³; 0 where it has no fp8
    """

    bandwidth: float
    bf16: float
    fp8: float


def seconds(
    call: Callable[[], object], rounds: int = 20, variants: Sequence[Callable[[], object]] = ()
) -> float:
    """Median time of a call on the device, captured in a graph, so that no launch is in it.

    variants  the same call on other buffers, so many that together they exceed the cache: one graph runs all
              of them. Without any, the cache is flushed before each call.
    A call that cannot be captured is timed as it is launched.
    """
    calls = (call, *variants)
    for one in calls:
        for _ in range(_WARM):
            one()
    torch.cuda.synchronize()
    flush = None if variants else torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    run = _captured(calls)
    times = []
    for _ in range(rounds):
        if flush is not None:
            flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    milliseconds: float = statistics.median(begin.elapsed_time(end) for begin, end in times)
    return milliseconds / 1e3 / len(calls)


def ceilings() -> Ceilings:
    """Measured now; a few hundred milliseconds."""
    size = 1 << 30
    # Not copy_: a graph hands that to the copy engines, which reach two thirds of what kernels do.
    source, target = torch.randn(2, size // 4, device="cuda")
    bandwidth = 2 * size / seconds(lambda: torch.neg(source, out=target))
    n = 8192
    a, b = torch.randn(2, n, n, device="cuda", dtype=torch.bfloat16)
    bf16 = 2 * n**3 / seconds(lambda: a @ b.t())
    fp8 = 0.0
    if torch.cuda.get_device_capability() >= (8, 9):
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        fp8 = (
            2
            * n**3
            / seconds(
                lambda: torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            )
        )
    return Ceilings(bandwidth, bf16, fp8)


def _captured(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    def run() -> None:
        for call in calls:
            call()

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return run
    return graph.replay
