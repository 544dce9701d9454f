"""What the log says of a step at the level DEBUG: `data/explained-steps.txt`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from engine_bench import bench

GOLDEN = Path(__file__).parent / "data" / "explained-steps.txt"


def test_each_step_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "slipway.engine.scheduler")
    with bench(num_pages=24, block_size=4, token_budget=16, max_requests=4, num_drafts=2) as b:
        b.add("long", [1] * 40, 3)
        b.turn()
        b.add("shares", [1] * 40, 2)
        b.add("large", [2] * 60, 4)
        b.add("small", [3] * 6, 4)
        b.run()
    with bench(num_pages=8, block_size=4, token_budget=64) as other:
        other.add("old", [1] * 10, 9)
        other.add("young", [2] * 10, 9)
        other.run()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == sum(bool(plan.slots) for plan in (*b.plans, *other.plans))
    assert "\n".join([*told, ""]) == GOLDEN.read_text()


def test_nothing_is_made_of_it_at_other_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slipway.engine.scheduler")
    with bench() as b:
        b.add("a", 5, 3)
        b.run()
    assert not caplog.records
