"""The ground as fixtures: built and started when a test first asks for it, ended with the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from xdist.scheduler import LoadScopeScheduling

from e2e.ground import packages
from e2e.ground.build import Binaries
from e2e.ground.control_plane import ControlPlane
from e2e.ground.node import Cluster
from e2e.ground.patience import HEADER
from e2e.ground.remains import sweep
from e2e.images.build import missing
from e2e.images.release import Released, release
from e2e.installation import Installation
from e2e.operators import define

ON_NODE = {
    "explained": (
        *("beside", "examples", "failures", "failures_rollout", "failures_runtime", "field_faults"),
        *("fits", "ground_node", "layers"),
    ),
    "installed": ("helm_cluster", "ipv6", "path", "streams", "two_nodes", "walk"),
}
"""Files whose tests run pods, in two parts that take about as long: they are the longest way. Those of a part
share a cluster with the images in it; more clusters would pull the same gigabytes more often.
"""
PODMAN = ("images", "images_render")
"""Files whose tests run containers without a cluster."""
SCOPES = {f"test_{name}": scope for scope, names in (ON_NODE | {"podman": PODMAN}).items() for name in names}
"""Of the files that go to one worker together, the longest first. Any other file goes alone."""


def pytest_report_header() -> str:
    return HEADER


class Scheduling(LoadScopeScheduling):
    """Each file goes to one worker of pytest-xdist, and those of a scope all to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0]).stem
        return SCOPES.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest way first. A test on the node that no file of ON_NODE holds is not let pass."""
    for item in items:
        on_node = not {"cluster", "released"}.isdisjoint(getattr(item, "fixturenames", ()))
        held = SCOPES.get(item.path.stem) in ON_NODE
        assert held or not on_node, f"{item.path} belongs to ON_NODE of {__file__}"
    place = {scope: number for number, scope in enumerate(dict.fromkeys(SCOPES.values()))}
    items.sort(key=lambda item: place.get(SCOPES.get(item.path.stem, ""), len(place)))


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


@pytest.fixture
def plane(binaries: Binaries, carries_control_plane: None) -> Iterator[ControlPlane]:
    """A control plane of the test's own, with our CRDs: nodes that pretend to run pods, and what belongs to a
    whole cluster, would confuse others."""
    with ControlPlane(binaries) as fresh:
        define(fresh)
        yield fresh


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


@pytest.fixture(scope="module")
def installation(
    cluster: Cluster, released: Released, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """The operator in the cluster, by its chart with the defaults, for one module."""
    with Installation(cluster, released, tmp_path_factory.mktemp("helm")) as made:
        yield made


def _must_carry(commands: dict[str, str]) -> None:
    sweep()
    if objection := packages.objection(commands):
        _cannot(objection)


def _cannot(objection: str) -> NoReturn:
    """Skip where the machine lacks something; in CI a skip would pass for a proof, so fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(objection, pytrace=False)
    pytest.skip(objection)
