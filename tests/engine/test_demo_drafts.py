"""Ten prompts of the demo model, with and without drafts; two hundred in tests/soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_drafts import WAYS, check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_token_of_ten_prompts(demo_model: Path, way: str) -> None:
    counted = check(demo_model, way, count=10, most=48)
    assert counted.accepted > 150
    assert counted.rejected > 150
