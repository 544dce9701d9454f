"""Two hundred prompts of the demo model, each way to draw, with and without drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_drafts import WAYS, check, check_layers


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_token_of_two_hundred_prompts(demo_model: Path, way: str) -> None:
    counted = check(demo_model, way, count=200, most=64)
    assert counted.accepted > 1000
    assert counted.rejected > 1000


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_layers_change_no_token_of_two_hundred_prompts(demo_model: Path, tmp_path: Path, way: str) -> None:
    counted = check_layers(demo_model, tmp_path, way, count=200, most=64)
    assert counted.accepted > 1000
    assert counted.rejected > 1000
