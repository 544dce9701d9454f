"""Every write of the operator, each refused unless the Lease is surely ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from slipway_operator.cluster import APPLY, KINDS, MERGE, Cluster, Kind, Object, Refused
from slipway_operator.informer import MANAGER, Store, place_of
from slipway_operator.shapes import uid


class NotActive(Exception):
    """Another operator may hold the Lease: nothing was written."""


class Writer:
    """Writes, and lets the stores learn from the answers: the next look compares with what we wrote."""

    def __init__(self, cluster: Cluster, may_write: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._may_write = may_write
        self._closed = False
        self._under_way: set[asyncio.Task[Object]] = set()

    async def close(self) -> None:
        """Write no more, and wait for what is under way: a successor begins as soon as the Lease is free."""
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def apply(self, wanted: Object, live: Object | None, store: Store) -> None:
        """Server-side apply. `live` is an object that our resource controls: only then are others' fields
        taken, and its uid makes the API server refuse where a stranger's has taken its place.

        Raises NotActive, Refused and Unreachable.
        """
        body = wanted
        if live is not None:
            body = {**wanted, "metadata": {**wanted["metadata"], "uid": live["metadata"]["uid"]}}
        path = KINDS[wanted["kind"]].path(*place_of(wanted))
        store.learn(await self._patch(path, body, force=live is not None))

    async def set_status(self, resource: Object, status: Object, store: Store) -> None:
        """Raises NotActive, Refused and Unreachable."""
        metadata = {name: resource["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            "metadata": metadata,
            "status": status,
        }
        path = store.kind.path(*place_of(resource), "status")
        store.learn(await self._patch(path, body, force=True))

    async def delete(self, item: Object, store: Store) -> None:
        """Delete this very object; that it is gone already is no error.

        Raises NotActive, Refused and Unreachable.
        """
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid(item)}}
        try:
            await self._send("DELETE", store.kind.path(*place_of(item)), None, body)
        except Refused as problem:
            if problem.status not in (404, 409):
                raise
        store.drop(item)

    async def create(self, kind: Kind, item: Object) -> None:
        """Raises NotActive, Refused and Unreachable."""
        await self._send("POST", kind.path(item["metadata"]["namespace"]), None, item)

    async def merge(self, kind: Kind, namespace: str, name: str, body: Object) -> None:
        """Change these fields of an object. Raises NotActive, Refused and Unreachable."""
        await self._send("PATCH", kind.path(namespace, name), None, body, MERGE)

    async def _patch(self, path: str, body: Object, force: bool) -> Object:
        query = {"fieldManager": MANAGER, **({"force": "true"} if force else {})}
        return await self._send("PATCH", path, query, body, APPLY)

    async def _send(self, *request: Any) -> Object:
        if self._closed or not self._may_write():
            raise NotActive
        task = asyncio.create_task(self._cluster.ask(*request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)  # once sent it runs to its end, also where its caller is cancelled
