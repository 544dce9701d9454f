"""When the memory that a server takes is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slipway.api import memory
from slipway.api.memory import FIRST_READINGS, MOST_READINGS, MemoryReport
from slipway.engine.messages import Memory


async def measured(readings: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """What is shown, and how many readings it took."""
    left = iter(readings)
    monkeypatch.setattr(memory, "READ_SECONDS", 0.0)
    monkeypatch.setattr(memory, "footprint", lambda pid: next(left))
    known = Memory(capacity=1000, estimated=900, at_rest=500, kv_tokens=10, max_model_len=10)
    engine: Any = SimpleNamespace(ready=SimpleNamespace(memory=known), progress=None)
    report = MemoryReport(engine)
    assert report.shown is not None
    assert not report.shown.measured
    await report.measure()
    return report.shown.measured, len(readings) - len([*left])


async def test_memory_at_rest_is_read_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await measured([500] * 30, monkeypatch) == (500, FIRST_READINGS)


async def test_memory_that_grows_is_read_until_it_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await measured([100, 200, 300, 400, 500, 504, 900], monkeypatch) == (504, 6)


async def test_memory_that_goes_on_growing_is_what_was_read_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await measured([100 * 2**n for n in range(30)], monkeypatch) == (
        100 * 2 ** (MOST_READINGS - 1),
        MOST_READINGS,
    )
