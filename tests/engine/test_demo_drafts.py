"""Ten prompts of the demo model, with and without drafts; two hundred in tests/soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_drafts import WAYS, check, check_layers

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_token_of_ten_prompts(demo_model: Path, way: str) -> None:
    counted = check(demo_model, way, count=10, most=48)
    assert counted.accepted > 150
    assert counted.rejected > 150


@pytest.mark.parametrize("way", WAYS)
def test_layers_change_no_token_of_ten_prompts(demo_model: Path, tmp_path: Path, way: str) -> None:
    counted = check_layers(demo_model, tmp_path, way, count=10, most=48)
    assert counted.accepted > 100
    assert counted.rejected > 100
