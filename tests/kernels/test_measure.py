"""The stopwatch's arithmetic and its order of calls and flushes, without a device."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from slipway_kernels.cuda import measure
from slipway_kernels.cuda.cases import Case
from slipway_kernels.cuda.measure import READ_FLUSH, Ceilings, Flush, Timing, calls_for, repeat, seconds

LIMITS = Ceilings(read=4e12, read_write=3e12, flops={"bf16": 800e12, "fp8_fast": 1600e12})


def case(moved: int, written: int = 0, flops: int = 0, arithmetic: str = "bf16") -> Case:
    return Case("any", torch.empty, bytes=moved, written=written, flops=flops, arithmetic=arithmetic)  # type: ignore[arg-type]


def test_a_time_is_the_difference_of_the_medians_for_each_call() -> None:
    timing = Timing.of([0.0023, 0.0023, 0.0050], [0.0020, 0.0020, 0.0010], calls=10)
    assert timing.seconds == pytest.approx(30e-6)
    assert timing.resolution == pytest.approx(0.1e-6)  # two ticks of half a microsecond, for ten calls


@pytest.mark.parametrize("both", [0.0010, 0.0020, 0.0020009])
def test_a_time_below_the_resolution_is_none(both: float) -> None:
    timing = Timing.of([both] * 5, [0.0020] * 5, calls=10)
    assert timing.seconds is None
    assert timing.resolution == pytest.approx(0.1e-6)


def test_replays_that_differ_can_tell_less() -> None:
    """The same medians as 5 µs for each of ten calls, by replays that spread by 60 µs."""
    alone = [0.0020 + step * 60e-6 for step in (-2, -1, 0, 1, 2)]
    both = [time + 50e-6 for time in alone]
    assert Timing.of([0.00205] * 5, [0.0020] * 5, calls=10).seconds == pytest.approx(5e-6)
    assert Timing.of(both, alone, calls=10).seconds is None


def test_a_replay_has_as_many_calls_as_fill_it_between_two_bounds() -> None:
    assert [calls_for(once) for once in (1e-6, 50e-6, 200e-6, 20e-3)] == [64, 40, 10, 2]


def test_a_flush_is_behind_each_call_and_reads_on() -> None:
    order: list[object] = []
    repeat(3, order.append, lambda: order.append("call"))
    assert order == ["call", 0, "call", 1, "call", 2]
    order.clear()
    repeat(3, order.append, None)
    assert order == [0, 1, 2]


def test_a_flush_reads_all_of_a_part_that_the_cache_cannot_hold_and_writes_none_of_it() -> None:
    cache = 1000
    flush = Flush(torch.device("cpu"), cache)
    assert flush.parts[0].nbytes >= 2 * cache
    for part in range(4):
        flush.parts[part] = part + 1
    before = flush.parts.clone()
    sums = []
    for number in range(5):
        flush(number)
        sums.append(float(flush.sum))
    assert sums == [count * flush.parts.shape[1] for count in (1, 2, 3, 4, 1)]
    assert flush.parts.equal(before)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that flushes and calls advance, and what `captures` says of those that can be captured."""
    clock = SimpleNamespace(now=0.0, captures=True, replays=0)

    def flush(number: int) -> None:
        clock.now += 40e-6

    def between(run: Callable[[], None]) -> tuple[float, float]:
        begin = clock.now
        run()
        return begin, clock.now

    def captured(run: Callable[[], None]) -> object:
        def replay() -> None:
            clock.replays += 1
            run()

        before = clock.now
        run()
        has_call, clock.now = (clock.now - before) % 40e-6 > 1e-9, before
        return SimpleNamespace(replay=replay) if clock.captures or not has_call else None

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(measure, "_flush_of", lambda device: flush)
    monkeypatch.setattr(measure, "_between", between)
    monkeypatch.setattr(measure, "_elapsed", lambda events: [end - begin for begin, end in events])
    monkeypatch.setattr(measure, "_captured", captured)
    return clock


@pytest.mark.parametrize(("captures", "way"), [(True, READ_FLUSH), (False, f"{READ_FLUSH}, launched")])
def test_flushes_are_no_part_of_a_time_and_launched_calls_are_marked(
    device: SimpleNamespace, captures: bool, way: str
) -> None:
    def call() -> None:
        device.now += 7e-6

    device.captures = captures
    timing = seconds(call, rounds=3)
    assert timing.seconds == pytest.approx(7e-6)
    assert timing.way == way
    assert device.replays == (7 if captures else 0)  # with calls and without them, and one before


def test_a_call_that_takes_nothing_has_no_time(device: SimpleNamespace) -> None:
    assert seconds(lambda: None).seconds is None


def test_the_bound_of_a_case_tells_reading_and_writing_apart() -> None:
    assert LIMITS.bound(case(4000)) == pytest.approx(4000 / 4e12)
    assert LIMITS.bound(case(4000, 2000)) == pytest.approx(4000 / 3e12)  # as the kernel that copies
    only_written = 4000 * (2 / 3e12 - 1 / 4e12)
    assert LIMITS.bound(case(4000, 4000)) == pytest.approx(only_written)
    assert LIMITS.bound(case(5000, 1000)) == pytest.approx(4000 / 4e12 + only_written / 4)


def test_the_bound_of_a_case_is_what_takes_longest_by_its_own_arithmetic() -> None:
    assert LIMITS.bound(case(4000, flops=1_600_000)) == pytest.approx(1_600_000 / 800e12)
    assert LIMITS.bound(case(4000, flops=1_600_000, arithmetic="fp8_fast")) == pytest.approx(1e-9)
    assert LIMITS.bound(case(4000, flops=400_000)) == pytest.approx(4000 / 4e12)


def test_arithmetic_that_was_not_measured_is_no_bound() -> None:
    assert LIMITS.bound(case(4000, flops=1 << 40, arithmetic="int8")) == pytest.approx(4000 / 4e12)
