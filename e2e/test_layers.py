"""Layers of the released images wait in the cache for the next cluster, one set and no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.ground import layers
from e2e.ground.node import Cluster


@contextmanager
def pushed(cluster: Cluster, folder: Path, name: str) -> Iterator[str]:
    """A reference to an image with one file, whose content is the image's name."""
    (folder / name).write_text(f"{cluster.name} {name}")
    working = cluster.must("buildah", "from", "scratch").strip()
    image = f"localhost/{cluster.name}/{name}:1"
    try:
        cluster.must("buildah", "copy", working, folder / name, "/file")
        cluster.must("buildah", "commit", "--quiet", working, image)
        yield cluster.push(image)
    finally:
        cluster.must("buildah", "rm", working)
        cluster.run("buildah", "rmi", image, capture_output=True)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Of this test's own: what the machine keeps stays."""
    monkeypatch.setenv("SLIPWAY_E2E_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_registry_starts_with_the_layers_that_were_kept_last_and_no_others(cluster, cache, tmp_path):
    with pushed(cluster, tmp_path, "first") as first, pushed(cluster, tmp_path, "second") as second:
        cluster.keep(first, second)
        cluster.keep(second)
        storage = tmp_path / "storage"
        layers.fill(storage)
        contents = [path.relative_to(storage) for path in storage.rglob("data")]
        assert len(contents) == 2, "one configuration and one layer"
        assert all((storage / path).samefile(cluster.storage / path) for path in contents)
        assert len(list(storage.glob("**/second/_layers/**/link"))) == 2


def test_a_registry_starts_empty_where_nothing_is_kept(cache, tmp_path):
    layers.fill(tmp_path / "storage")
    assert not list(tmp_path.glob("storage/**/*"))
