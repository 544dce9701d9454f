"""What the cluster has beside the always-there: optional kinds, the size of nodes, the mode of claims."""

from __future__ import annotations

import time

from slipway.service.rollout import ONE_NODE, ONE_POD
from slipway_operator.cluster import CLAIM, NODE, OPTIONAL, Cluster, Kind, Object, Refused

LOOK_EVERY = 60.0
NODES_FOR = 60.0
CLAIMS_FOR = 600.0
SHARED = {"ReadWriteMany", "ReadOnlyMany"}


async def optional_kinds(cluster: Cluster) -> frozenset[Kind]:
    """The optional kinds that the API server serves now. Raises Unreachable, and Refused but for a 404."""
    found: set[Kind] = set()
    for root in sorted({kind.root for kind in OPTIONAL}):
        try:
            listed = await cluster.ask("GET", root)
        except Refused as problem:
            if problem.status != 404:
                raise
            continue
        names = {resource["name"] for resource in listed.get("resources") or ()}
        found |= {kind for kind in OPTIONAL if kind.root == root and kind.plural in names}
    return frozenset(found)


class Nodes:
    """The nodes, asked for where a service wants devices, and remembered for a minute."""

    def __init__(self, cluster: Cluster, permitted: bool) -> None:
        """permitted  whether we may list nodes: only where the operator serves the whole cluster"""
        self._cluster = cluster
        self._permitted = permitted
        self._nodes: list[Object] = []
        self._asked_at: float | None = None

    async def all(self) -> list[Object]:
        """Name, labels and what pods may take of each node; empty where we may not ask. Raises as `ask`."""
        if not self._permitted:
            return []
        if self._asked_at is None or time.monotonic() > self._asked_at + NODES_FOR:
            self._nodes = await self._cluster.ask_for_all(NODE.path(None), _slim)
            self._asked_at = time.monotonic()
        return self._nodes


class Claims:
    """For how many a PersistentVolumeClaim is, remembered for ten minutes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str], tuple[str | None, float]] = {}

    async def exclusive(self, namespace: str, name: str) -> str | None:
        """ReadWriteOnce, ReadWriteOncePod, or None where every node can mount it.

        None for a claim that is not there, too: its pods wait for it, and the next look asks again.

        Raises Unreachable and Refused.
        """
        known = self._known.get((namespace, name))
        if known and time.monotonic() < known[1] + CLAIMS_FOR:
            return known[0]
        try:
            claim = await self._cluster.ask("GET", CLAIM.path(namespace, name))
        except Refused as problem:
            if problem.status != 404:
                raise
            return None
        modes = set(claim["spec"]["accessModes"])
        exclusive = ONE_POD if modes == {ONE_POD} else ONE_NODE
        mode = None if SHARED & modes else exclusive
        self._known[namespace, name] = (mode, time.monotonic())
        return mode


def _slim(node: Object) -> Object:
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {name: spec[name] for name in ("taints", "unschedulable") if name in spec},
        "status": {"allocatable": status.get("allocatable") or {}},
    }
