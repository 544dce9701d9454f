"""This tree's images in a cluster's registry, by the names that the charts and the examples give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from e2e.ground.node import Cluster
from e2e.images.build import build
from slipway import __version__
from slipway.service.facts import REGISTRY

RELEASED = ("runtime-cpu", "operator", "demo-model")
"""Targets of the Containerfile that a cluster without devices runs."""


@dataclass(frozen=True, slots=True)
class Released:
    """References that pods can pull."""

    runtime: str
    operator: str
    demo_model: str


def release(cluster: Cluster, say: Callable[[str], None] = lambda line: None) -> Released:
    """Build what is not built yet and push it; `say` is told what takes minutes.

    Raises ImagesUnavailable, CalledProcessError where a build fails, and GroundFailed where a push does.
    """

    names = [f"slipway/{target}:{__version__}" for target in RELEASED]
    for target, name in zip(RELEASED, names, strict=True):
        say(f"Image {name}: building")
        built = build(target)
        say(f"Image {name}: pushing")
        cluster.push(built, name)
    cluster.keep(*names)
    # What docker.io would hold, the node gets from the cluster's own.
    return Released(*(f"{REGISTRY}/{name}" for name in names))
