"""How long a call takes on the device, and what the device can do at best.

There is one stopwatch, for our kernels and for those that they are compared with.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Arithmetic, Case

READ_FLUSH = "read-flush"
"""How rows say that a time is of this stopwatch. Rows that say nothing are of an older one."""

_WARM = 3
_REPLAY = 2e-3
"""Seconds that a replay should take: many times what the event clock and the start of a graph are off by."""
_CALLS = (2, 64)
"""Fewest and most calls in a replay."""
_UNKNOWN_CACHE = 128 << 20
"""Bytes of the second-level cache, where the driver does not tell: as many as the largest has."""
_TICK = 0.5e-6
"""Seconds between two ticks of the clock that events read."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one call.

    seconds     None where it is below the resolution
    resolution  seconds: the shortest time that these replays can tell from none
    captured    whether the replays were of CUDA graphs; else the host launched each call
    """

    seconds: float | None
    resolution: float
    captured: bool = True

    @classmethod
    def of(
        cls, both: Sequence[float], alone: Sequence[float], calls: int, *, captured: bool = True
    ) -> Timing:
        """From the seconds of replays: `both` of so many calls and as many flushes, `alone` of the flushes.

        The resolution is three standard errors of the difference of the medians, and a tick for each of them.
        """
        took = (statistics.median(both) - statistics.median(alone)) / calls
        error = math.hypot(_standard_error(both), _standard_error(alone))
        resolution = (3 * error + 2 * _TICK) / calls
        return cls(took if took > resolution else None, resolution, captured)

    @property
    def way(self) -> str:
        """How it was timed, as rows say it."""
        return READ_FLUSH if self.captured else f"{READ_FLUSH}, launched"


def _standard_error(times: Sequence[float]) -> float:
    """Of the median, by the median distance from it: one replay that was disturbed does not count."""
    middle = statistics.median(times)
    deviation = 1.4826 * statistics.median(abs(time - middle) for time in times)
    return 1.2533 * deviation / math.sqrt(len(times))


class Flush:
    """Reads three times what the second-level cache holds, so that a call finds nothing of its own in it.

    It never writes. Lines that a flush had written would go to memory during the call behind it, at its cost.
    Lines that a call has written go there during the flush behind it, and count as the call's.

    Each flush reads another of four parts of a buffer, so that it finds nothing of its own in the cache
    either: it takes as long after a call as after another flush.
    """

    CACHES, PARTS = 3, 4

    def __init__(self, device: torch.device, cache_bytes: int) -> None:
        count = -(-self.CACHES * cache_bytes // 4)
        self.parts = torch.ones(self.PARTS, count, device=device)
        self.sum = torch.zeros((), device=device)

    def __call__(self, number: int) -> None:
        torch.sum(self.parts[number % self.PARTS], 0, out=self.sum)


@cache
def _flush_of(device: int) -> Flush:
    known = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    return Flush(torch.device("cuda", device), known or _UNKNOWN_CACHE)


def seconds(call: Callable[[], object], rounds: int = 11) -> Timing:
    """The time of a call that finds nothing in the cache, within a CUDA graph, as a server would run it.

    It is the difference between two graphs, one of several calls with a flush behind each and one of as many
    flushes: what it takes to start a graph is in neither. The graphs take turns, and the medians count.
    A call that cannot be captured is launched each time, among the same flushes, and marked.
    """
    for _ in range(_WARM):
        call()
    flush = _flush_of(torch.cuda.current_device())
    calls = calls_for(_elapsed([_between(partial(repeat, 1, flush, call))])[0])
    runs = [partial(repeat, calls, flush, which) for which in (None, call)]
    graphs = [_captured(run) for run in runs]
    captured = all(graphs)
    replays = [graph.replay if captured and graph else run for graph, run in zip(graphs, runs, strict=True)]
    replays[0]()  # the last flush of a replay makes the cache ready for the next
    pairs = [[_between(replay) for replay in replays] for _ in range(rounds)]
    alone, both = (_elapsed(events) for events in zip(*pairs, strict=True))
    return Timing.of(both, alone, calls, captured=captured)


def calls_for(once: float) -> int:
    """How many calls a replay has, of which one with its flush takes `once` seconds."""
    fewest, most = _CALLS
    return max(fewest, min(most, round(_REPLAY / once)))


def repeat(count: int, flush: Callable[[int], object], call: Callable[[], object] | None) -> None:
    """So many calls with a flush behind each, or the flushes alone."""
    for number in range(count):
        if call is not None:
            call()
        flush(number)


Events = tuple[torch.cuda.Event, torch.cuda.Event]


def _between(run: Callable[[], object]) -> Events:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    return begin, end


def _elapsed(events: Iterable[Events]) -> list[float]:
    """Seconds between the events of each pair."""
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]


def _captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """None where something in it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device reached in the same run, by the same stopwatch.

    read        bytes a second of a kernel that only reads
    read_write  of a kernel that reads and writes as many bytes, both counted
    flops       FLOP/s, or integer operations a second, of cuBLAS on 8192³, by arithmetic; those that the
                device lacks are missing
    """

    read: float
    read_write: float
    flops: Mapping[Arithmetic, float] = field(default_factory=dict)

    def bound(self, case: Case) -> float:
        """The least seconds that the case can take on this device.

        A byte that is read takes 1 / read, and a byte that is written what is left of a byte that is read
        and written.
        """
        read, written = case.bytes - case.written, case.written
        memory = read / self.read + written * (2 / self.read_write - 1 / self.read)
        peak = self.flops.get(case.arithmetic)
        return max(memory, case.flops / peak if peak else 0.0)


def ceilings() -> Ceilings:
    """Measured now; a second or two."""
    return Ceilings(*_bandwidths(), _rates(8192))


def _bandwidths() -> tuple[float, float]:
    """Of reading, by the faster of two kernels that write next to nothing, and of reading and writing."""
    source, target = torch.randn(2, 1 << 28, device="cuda")
    total = torch.zeros((), device="cuda")
    matrix, vector = source.bfloat16().view(-1, 8192), torch.ones(8192, device="cuda", dtype=torch.bfloat16)
    read = max(
        source.nbytes / _known(lambda: torch.sum(source, 0, out=total)),
        matrix.nbytes / _known(lambda: torch.mv(matrix, vector)),
    )
    # Not copy_: a graph hands that to the copy engines, which reach two thirds of what kernels do.
    return read, 2 * source.nbytes / _known(lambda: torch.neg(source, out=target))


def _rates(n: int) -> dict[Arithmetic, float]:
    a, b = torch.randn(2, n, n, device="cuda")
    a16, b16 = a.bfloat16(), b.bfloat16()
    whole, other = torch.randint(-127, 128, (2, n, n), device="cuda", dtype=torch.int8)
    calls: dict[Arithmetic, Callable[[], Tensor]] = {
        "bf16": lambda: a16 @ b16.t(),
        "fp32": lambda: a @ b.t(),
        "int8": lambda: torch._int_mm(whole, other.t()),
    }
    if torch.cuda.get_device_capability() >= (8, 9):
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")

        def scaled(fast: bool) -> Tensor:
            return torch._scaled_mm(
                *(a8, b8.t()), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
            )

        calls |= {"fp8_fast": partial(scaled, True), "fp8_exact": partial(scaled, False)}
    return {name: 2 * n**3 / _known(call) for name, call in calls.items()}


def _known(call: Callable[[], object]) -> float:
    """Seconds of a call that takes long enough to be timed in a few rounds."""
    took = seconds(call, rounds=5).seconds
    if took is None:
        raise RuntimeError("the device took less time for a ceiling than the stopwatch can tell")
    return took
