"""What the cluster has beside the always-there: optional kinds, the size of nodes, the mode of claims."""

from __future__ import annotations

import asyncio
import contextlib
import time

from slipway.service.rollout import ONE_NODE, ONE_POD
from slipway_operator.cluster import ANSWER_SECONDS, CLAIM, NODE, OPTIONAL, PROFILE, Cluster, Kind, Object
from slipway_operator.informer import Informer, Store

LOOK_EVERY = 60.0
NODES_FOR = 600.0
CLAIMS_FOR = 600.0
SHARED = {"ReadWriteMany", "ReadOnlyMany"}


async def optional_kinds(cluster: Cluster) -> frozenset[Kind]:
    """The optional kinds that the API server serves now, profiles among them.

    Raises Unreachable, and Refused but for a 404.
    """
    found: set[Kind] = set()
    wanted = (*OPTIONAL, PROFILE)
    for root in sorted({kind.root for kind in wanted}):
        listed = await cluster.find(root) or {}
        names = {resource["name"] for resource in listed.get("resources") or ()}
        found |= {kind for kind in wanted if kind.root == root and kind.plural in names}
    return frozenset(found)


class Nodes:
    """The nodes, watched while pods find none that fits: numbers for what the scheduler says. Their metadata
    alone, which would be less to send, does not have what a node has."""

    def __init__(self, cluster: Cluster, permitted: bool) -> None:
        """permitted  whether we may see nodes: only where the operator serves the whole cluster"""
        self._cluster = cluster
        self._permitted = permitted
        self._informer: Informer | None = None
        self._store = Store(NODE, lambda key: None, lambda node: None)
        self._asked_at = 0.0

    async def all(self) -> list[Object]:
        """Name, labels and what pods may take of each node; empty where we may not ask, and where the API
        server does not answer in time."""
        if not self._permitted:
            return []
        self._asked_at = time.monotonic()
        if self._informer is None:
            loop = asyncio.get_running_loop()
            self._informer = Informer(self._cluster, self._store, None, loop, selector="")
            self._informer.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._informer.synced.wait()
        return self._store.items()

    def tidy(self) -> None:
        """Watch nodes no more once nobody has asked for long: each tells of itself every few minutes."""
        if self._informer is not None and time.monotonic() > self._asked_at + NODES_FOR:
            self._informer.stop()
            self._informer = None


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
        claim = await self._cluster.find(CLAIM.path(namespace, name))
        if claim is None:
            return None
        modes = set(claim["spec"]["accessModes"])
        exclusive = ONE_POD if modes == {ONE_POD} else ONE_NODE
        mode = None if SHARED & modes else exclusive
        self._known[namespace, name] = (mode, time.monotonic())
        return mode
