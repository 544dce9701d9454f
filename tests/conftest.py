"""What tests of several packages share."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "bench"))  # quantize.py packs what tests read

from factory import ARCHITECTURES, model_folders
from slipway import driver

if not driver.loaded():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, whichever test does so first


INTERPRETED = ("tests/kernels/cuda/", "tests/worker/device/")
"""Where Triton's interpreter runs the kernels: a third of all the time that tests take."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(INTERPRETED):
        item.add_marker("slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, then those with many: no worker is left alone with a long one at the end.

    For a run that does not order them by itself (xdist's --no-loadscope-reorder).
    """
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path]))


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file, fetched when it is not in the cache."""
    from slipway.load.demo import fetch

    return fetch()


@pytest.fixture
def cluster_key(tmp_path: Path) -> Path:
    """A file for --cluster-key-file."""
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the tiny random model of an architecture; each is made once a session."""
    return model_folders(tmp_path_factory.mktemp("models"), {name: (name, {}) for name in ARCHITECTURES})
