"""The toy model stands beside the tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    """Of torch, where a test has imported it."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
