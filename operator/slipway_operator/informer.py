"""A copy of all children: listed in pages, then watched.

kopf sends no label selector and tells no deletion that happened between two lists, so children are followed
here: only objects with our label, and each list replaces the copy, so that what vanished in a gap counts as
deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable

from slipway_operator.cluster import MADE, NODE, SEEN, SERVICE, Cluster, Kind, Object, Refused, Unreachable
from slipway_operator.queue import back_off
from slipway_operator.shapes import controller

MANAGER = "slipway-operator"
"""Our name as the manager of fields."""
SELECTOR = "app.kubernetes.io/managed-by=slipway"
INSTANCE = "app.kubernetes.io/instance"
WATCH_SECONDS = 540
SILENCE_SECONDS = 100.0
"""The API server sends a bookmark each minute or so: longer silence means a dead connection."""
LONGEST_BACK_OFF = 15.0

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of an InferenceService."""


def key_of(item: Object) -> Key | None:
    """The service to which a child belongs: by its controller, else by its label (pods, ReplicaSets, and
    where somebody took the owner away)."""
    metadata = item["metadata"]
    owner = controller(item)
    if owner and owner["kind"] == SERVICE.name and owner["apiVersion"].startswith(f"{SERVICE.group}/"):
        return metadata["namespace"], owner["name"]
    name = (metadata.get("labels") or {}).get(INSTANCE)
    return (metadata["namespace"], name) if name else None


def version(item: Object) -> int:
    """Resource versions of one type grow; one that is no number counts as oldest."""
    text = item["metadata"].get("resourceVersion") or ""
    return int(text) if text.isdecimal() else 0


def slim(item: Object, kind: Kind) -> Object:
    """The object as it is kept: with its kind, which lists leave out, and without what nobody reads.

    That is each entry of managedFields but ours, half of an object's size, the template of a ReplicaSet, of
    which a Deployment leaves some behind, and of a node all but its labels, its taints and what it has.
    """
    item.setdefault("kind", kind.name)
    item.setdefault("apiVersion", kind.api_version)
    metadata = item["metadata"]
    fields = metadata.get("managedFields") or ()
    metadata["managedFields"] = [entry for entry in fields if entry.get("manager") == MANAGER]
    if kind.name == "ReplicaSet":
        item["spec"].pop("template", None)
    if kind is NODE:
        item["metadata"] = {
            name: metadata[name] for name in ("name", "uid", "resourceVersion", "labels") if name in metadata
        }
        item["status"] = {"allocatable": (item.get("status") or {}).get("allocatable") or {}}
        spec = item.get("spec") or {}
        item["spec"] = {name: spec[name] for name in ("taints", "unschedulable") if name in spec}
    return item


def place_of(item: Object) -> tuple[str, str]:
    """Namespace and name; no namespace for what has none."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


class Store:
    """The objects of one kind, by the service to which each belongs. Belongs to the event loop."""

    def __init__(
        self,
        kind: Kind,
        changed: Callable[[Key], None],
        belongs: Callable[[Object], Key | None] = key_of,
    ) -> None:
        self.kind = kind
        self._changed = changed
        self._belongs = belongs
        self._items: dict[tuple[str, str], Object] = {}
        self._keys: dict[Key, set[str]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def get(self, namespace: str, name: str) -> Object | None:
        return self._items.get((namespace, name))

    def items(self) -> list[Object]:
        return [*self._items.values()]

    def of(self, key: Key) -> list[Object]:
        """The children of one service, by name."""
        return [self._items[key[0], name] for name in sorted(self._keys.get(key, ()))]

    def learn(self, item: Object) -> None:
        """An object as an answer or an event shows it; an older one than ours is ignored."""
        place = place_of(item)
        known = self._items.get(place)
        if known and known["metadata"]["uid"] == item["metadata"]["uid"] and version(item) <= version(known):
            return
        self._forget(place)
        self._items[place] = slim(item, self.kind)
        if key := self._belongs(item):
            self._keys.setdefault(key, set()).add(place[1])
            self._changed(key)

    def drop(self, item: Object) -> None:
        """The object is gone, unless one of the same name has taken its place."""
        place = place_of(item)
        known = self._items.get(place)
        if known and known["metadata"]["uid"] == item["metadata"]["uid"]:
            self._forget(place)

    def replace(self, namespace: str | None, items: Iterable[Object]) -> None:
        """A whole list, of one namespace or of all: what it does not hold is gone."""
        listed = {place_of(item): item for item in items}
        for place in [
            place for place in self._items if namespace in (None, place[0]) and place not in listed
        ]:
            self._forget(place)
        for item in listed.values():
            self.learn(item)

    def _forget(self, place: tuple[str, str]) -> None:
        item = self._items.pop(place, None)
        if item is None:
            return
        key = self._belongs(item)
        if key is not None:
            names = self._keys[key]
            names.discard(place[1])
            if not names:
                del self._keys[key]
            self._changed(key)


class Informer:
    """Keeps one store equal to what the API server has, for one kind in one namespace or all, in a thread."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        namespace: str | None,
        loop: asyncio.AbstractEventLoop,
        selector: str = SELECTOR,
    ) -> None:
        """selector  of labels; empty: all objects"""
        self._cluster = cluster
        self._selector = {"labelSelector": selector} if selector else {}
        self._store = store
        self._namespace = namespace
        self._path = store.kind.path(namespace)
        self._loop = loop
        self._stopped = threading.Event()
        self.synced = asyncio.Event()
        """Set once the first list is in the store."""
        self.heard_at = time.monotonic()
        """When a list, an event or a bookmark last came."""

    def start(self) -> None:
        # A daemon: it may sit in a read for minutes, and the operator's end does not wait for it.
        threading.Thread(target=self._follow, name=f"watch {self._path}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _follow(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            try:
                since = self._list()
                failures = 0
                while not self._stopped.is_set():
                    since = self._watch(since)
            except (Refused, Unreachable, KeyError, TypeError) as problem:
                # Whatever ended the watch (410, 5xx, an ERROR, an expired token, a cut), a new list mends it.
                failures += 1
                wait = back_off(failures + 1, random.random(), LONGEST_BACK_OFF)
                level = logging.DEBUG if failures == 1 else logging.WARNING
                log.log(level, "%s: listing again in %.1f s: %s", self._path, wait, problem)
                self._stopped.wait(wait)

    def _list(self) -> str:
        """All pages into the store; the resource version from which to watch."""
        items: list[Object] = []
        since = ""
        for page in self._cluster.pages(self._path, self._selector):
            items += (slim(item, self._store.kind) for item in page.get("items") or ())
            since = page["metadata"]["resourceVersion"]
            self.heard_at = time.monotonic()
        self._notify(self._store.replace, self._namespace, items)
        self._notify(self.synced.set)
        return since

    def _watch(self, since: str) -> str:
        """Events into the store until the stream ends; the resource version from which to go on."""
        query = {
            **self._selector,
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_SECONDS + random.randrange(60),
        }
        for event in self._cluster.stream(self._path, query, SILENCE_SECONDS):
            kind, item = event["type"], event["object"]
            if self._stopped.is_set():
                break
            self.heard_at = time.monotonic()
            if kind == "ERROR":
                raise Refused(int(item.get("code") or 0), item.get("reason") or "", item.get("message") or "")
            since = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                change = self._store.drop if kind == "DELETED" else self._store.learn
                self._notify(change, slim(item, self._store.kind))
        return since

    def _notify(self, change: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(change, *arguments)
        except RuntimeError:  # the loop has ended: so do we
            self._stopped.set()


class Children:
    """The stores of all kinds that the cluster has, and the informers that fill them."""

    def __init__(
        self, cluster: Cluster, scopes: Iterable[str | None], changed: Callable[[Key], None]
    ) -> None:
        self._cluster = cluster
        self._scopes = tuple(scopes)
        self._changed = changed
        self.stores: dict[str, Store] = {}
        self.informers: dict[str, list[Informer]] = {}

    def follow(self, kind: Kind) -> None:
        """Begin to keep a copy of this kind."""
        store = self.stores[kind.name] = Store(kind, self._changed)
        loop = asyncio.get_running_loop()
        self.informers[kind.name] = [Informer(self._cluster, store, scope, loop) for scope in self._scopes]
        for informer in self.informers[kind.name]:
            informer.start()

    def leave(self, kind: Kind) -> None:
        """The cluster has this kind no more."""
        for informer in self.informers.pop(kind.name, ()):
            informer.stop()
        self.stores.pop(kind.name, None)

    async def synced(self) -> None:
        """Wait until the store of every kind that each cluster has holds its first list."""
        for kind in (*MADE, *SEEN):
            for informer in self.informers[kind.name]:
                await informer.synced.wait()

    @property
    def all_synced(self) -> bool:
        return all(informer.synced.is_set() for group in self.informers.values() for informer in group)

    def heard_at(self) -> float:
        """When the most silent of the watches was last heard."""
        times = [informer.heard_at for group in self.informers.values() for informer in group]
        return min(times, default=time.monotonic())

    def of(self, kind: str, key: Key) -> list[Object]:
        store = self.stores.get(kind)
        return store.of(key) if store else []
