"""Two hundred prompts of the demo model, each way to draw, with and without drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_drafts import WAYS, check


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_token_of_two_hundred_prompts(demo_model: Path, way: str) -> None:
    counted = check(demo_model, way, count=200, most=64)
    assert counted.accepted > 1000
    assert counted.rejected > 1000
