"""What the cluster has beside the always-there: optional kinds, the size of nodes, the mode of claims."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from slipway.service.rollout import ONE_NODE, ONE_POD
from slipway_operator.cluster import ANSWER_SECONDS, CLAIM, NODE, OPTIONAL, PROFILE, Cluster, Kind, Object
from slipway_operator.informer import Informer, Key, Store

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
        self._store = Store(NODE, lambda key: None, lambda node: None, compress=False)
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


@dataclass(slots=True)
class Mode:
    """For how many a claim is, as it was read."""

    exclusive: str | None
    users: frozenset[str]
    """The uids of pods that mounted it then, or have mounted it since together with one of these: as long as
    one is there, the claim is too, and its access modes never change."""
    until: float
    """By the monotonic clock: when it is read again if nobody mounts it."""


class Claims:
    """For how many a PersistentVolumeClaim is: read again only if it may be another one of that name."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[Key, dict[str, Mode]] = {}

    async def exclusive(self, service: Key, claim: str, users: frozenset[str]) -> str | None:
        """ReadWriteOnce, ReadWriteOncePod, or None where every node can mount it.

        None for a claim that is not there, too: its pods wait for it, and the next look asks again.

        users  the uids of the service's pods that mount it

        Raises Unreachable and Refused.
        """
        known = self._known.get(service, {}).get(claim)
        if known is not None and known.users & users:
            known.users = users
            return known.exclusive
        if known is not None and time.monotonic() < known.until:
            return known.exclusive
        found = await self._cluster.find(CLAIM.path(service[0], claim))
        if found is None:
            return None
        modes = set(found["spec"]["accessModes"])
        exclusive = ONE_POD if modes == {ONE_POD} else ONE_NODE
        mode = Mode(None if SHARED & modes else exclusive, users, time.monotonic() + CLAIMS_FOR)
        self._known.setdefault(service, {})[claim] = mode
        return mode.exclusive

    def forget(self, service: Key) -> None:
        """The service is gone."""
        self._known.pop(service, None)
