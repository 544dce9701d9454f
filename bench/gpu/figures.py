"""What a row says of the time that a kernel takes, and its peers."""

from __future__ import annotations

from collections.abc import Callable

from slipway_kernels.cuda.cases import Case
from slipway_kernels.cuda.measure import READ_FLUSH, Ceilings, Timing

Stopwatch = Callable[[Callable[[], object]], Timing]


def of_device(limits: Ceilings) -> dict[str, object]:
    """What the device reached, as a row has it."""
    rates = {f"ceiling_{name}_TFLOP_s": rate / 1e12 for name, rate in limits.flops.items()}
    return {
        "timed": READ_FLUSH,
        "ceiling_read_TB_s": limits.read / 1e12,
        "ceiling_read_write_TB_s": limits.read_write / 1e12,
        **rates,
    }


def timed(case: Case, limits: Ceilings, stopwatch: Stopwatch) -> dict[str, object]:
    """Microseconds, rates, the share of the ceiling that bounds the case, and the peers' times.

    `timed` says how ours was timed, and `PEER timed` how a peer was that could not be captured in a graph.
    `untimed` names the times below the stopwatch's resolution, in microseconds; their cells are empty.
    """
    ours = stopwatch(case.run)
    fields: dict[str, object] = {"timed": ours.way, "us": _microseconds(ours)}
    if case.flops:
        fields["arithmetic"] = case.arithmetic
    if took := ours.seconds:
        if case.bytes:
            fields["GB/s"] = case.bytes / took / 1e9
        if case.flops:
            fields["TFLOP/s"] = case.flops / took / 1e12
        if bound := limits.bound(case):
            fields["of ceiling"] = bound / took
    timings = {"us": ours}
    for name, peer in case.peers.items():
        try:
            timing = timings[f"{name} us"] = stopwatch(peer)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            fields |= {f"{name} us": None, f"{name} failed": str(error).splitlines()[0][:120]}
            continue
        fields[f"{name} us"] = _microseconds(timing)
        if timing.way != READ_FLUSH:
            fields[f"{name} timed"] = timing.way
    untimed = {name: timing.resolution * 1e6 for name, timing in timings.items() if timing.seconds is None}
    if untimed:
        fields["untimed"] = ", ".join(f"{name} below {least:.2g}" for name, least in untimed.items())
    return fields


def _microseconds(timing: Timing) -> float | None:
    return None if timing.seconds is None else timing.seconds * 1e6
