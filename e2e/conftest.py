"""The ground as fixtures: built and started when a test first asks for it, ended with the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from e2e.ground import packages
from e2e.ground.build import Binaries
from e2e.ground.control_plane import ControlPlane
from e2e.ground.node import Cluster
from e2e.ground.remains import sweep
from e2e.images.build import missing
from e2e.images.release import Released, release

HEAVY = ("test_images", "test_images_render", "test_walk")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under pytest-xdist the tests with a node or with images go to one worker, and go there first.

    They take longest; two workers would pull the same gigabytes twice, and load models at the same time.
    """
    for item in items:
        heavy = "cluster" in getattr(item, "fixturenames", ()) or item.path.stem in HEAVY
        item.add_marker(pytest.mark.xdist_group("node" if heavy else item.path.stem))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group").args != ("node",))


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """Paths of the cluster's programs by name; each is compiled when it is first asked for."""
    return Binaries()


@pytest.fixture(scope="session")
def carries_control_plane() -> None:
    """This machine can make network namespaces; a test that cannot do without is skipped otherwise."""
    _must_carry(packages.CONTROL_PLANE)


@pytest.fixture(scope="session")
def carries_node(carries_control_plane: None) -> None:
    """This machine can run containers beside that."""
    _must_carry(packages.NODE)


@pytest.fixture(scope="session")
def control_plane(binaries: Binaries, carries_control_plane: None) -> Iterator[ControlPlane]:
    """A Kubernetes API without nodes, of this worker's own."""
    with ControlPlane(binaries) as plane:
        yield plane


@pytest.fixture(scope="session")
def cluster(binaries: Binaries, carries_node: None) -> Iterator[Cluster]:
    """A whole Kubernetes with one node and a registry, of this worker's own."""
    with Cluster(binaries) as whole:
        yield whole


@pytest.fixture(scope="session")
def released(cluster: Cluster) -> Released:
    """This tree's images, which the cluster pulls by the names in the charts and the examples."""
    if objection := missing():
        _cannot(objection)
    return release(cluster)


def _must_carry(commands: dict[str, str]) -> None:
    sweep()
    if objection := packages.objection(commands):
        _cannot(objection)


def _cannot(objection: str) -> NoReturn:
    """Skip where the machine lacks something; in CI a skip would pass for a proof, so fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(objection, pytrace=False)
    pytest.skip(objection)
