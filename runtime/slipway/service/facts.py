"""All that `render` knows beside the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from slipway import __version__
from slipway.service.fields import read
from slipway.service.peers import Peer
from slipway.service.profile import ServingProfile
from slipway.service.spec import TrustedCa

PROMETHEUS: Mapping[str, Any] = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
"""Pods that the Prometheus Operator makes, in whichever namespace, as a NetworkPolicy names them."""
REGISTRY = "docker.io"
"""Of the released images, in their names: without one each node's runtime would look where it is told to."""
ARCHITECTURE = "amd64"
"""For which they are built, as the label kubernetes.io/arch of nodes has it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The InferenceService in the cluster; what is rendered for it goes when it goes."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What whoever installs the operator says of the cluster, for all services alike."""

    cpu_image: str = f"{REGISTRY}/slipway/runtime-cpu:{__version__}"
    cuda_image: str = f"{REGISTRY}/slipway/runtime-cuda:{__version__}"
    cpu_architecture: str = ARCHITECTURE
    """Of the nodes that can run the image; empty where all can."""
    cuda_architecture: str = ARCHITECTURE
    image_pull_secrets: tuple[str, ...] = ()
    """Of pods whose document names none."""
    trusted_ca: TrustedCa | None = None
    """Of pods whose document and profile name none."""
    openshift: bool = False
    """The platform gives each namespace a range of user ids: the pod names none."""
    scrapers: tuple[Peer, ...] = (read(Peer, PROMETHEUS, "scrapers"),)
    """Who scrapes metrics."""
    monitoring_labels: Mapping[str, str] = field(default_factory=dict)
    """On every monitor, for the Prometheus that selects by them; the document's labels win."""

    def of_service(self, **more: Any) -> Facts:
        """With what is known of one service."""
        return Facts(**{one.name: getattr(self, one.name) for one in fields(ClusterFacts)}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(ClusterFacts):
    """What the place of the service offers, and what the operator has settled before."""

    kinds: frozenset[str] = frozenset()
    """Optional kinds that the cluster has, such as ServiceMonitor."""
    template: Mapping[str, Any] | None = None
    """The pinned pod template, which stands in for a newly made one."""
    namespace: str | None = None
    """Where the objects go; the document's own namespace where unset."""
    owner: Owner | None = None
    profile: ServingProfile | None = None
    """What the document's `profile` names."""
    no_room: str | None = None
    """Why no pod of the template fits beside those that run, where `maxSurge: Auto` asks."""
    exclusive_claims: Mapping[str, str] = field(default_factory=dict)
    """Claims of the namespace that not every node can mount at a time, where that is known, with how it is:
    ReadWriteOnce for one node, ReadWriteOncePod for one pod."""
    operator_namespace: str = "slipway-system"
    """Where the operator runs, which asks pods how far they are."""

    def has(self, kind: str) -> bool:
        return kind in self.kinds
