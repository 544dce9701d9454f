"""A copy of all children: listed in pages, then watched.

kopf sends no label selector and tells no deletion that happened between two lists, so children are followed
here: only objects with our label, and each list replaces the copy, so that what vanished in a gap counts as
deleted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipway_operator.cluster import MADE, NODE, SEEN, SERVICE, Cluster, Kind, Object, Refused, Unreachable
from slipway_operator.queue import back_off
from slipway_operator.shapes import REVISION, controller

MANAGER = "slipway-operator"
"""Our name as the manager of fields."""
SELECTOR = "app.kubernetes.io/managed-by=slipway"
INSTANCE = "app.kubernetes.io/instance"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
WATCH_SECONDS = 540
SILENCE_SECONDS = 100.0
"""The API server sends a bookmark each minute or so: longer silence means a dead connection."""
LONGEST_BACK_OFF = 15.0

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of an InferenceService."""
Note = tuple[str | None, ...]


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


Fields = Mapping[str, "Fields | None"]
"""The fields of an object that are kept, of lists those of each item; None: all that is below."""

_OWNED: Fields = {
    "name": None,
    "namespace": None,
    "uid": None,
    "resourceVersion": None,
    "creationTimestamp": None,
    "deletionTimestamp": None,
    "labels": {INSTANCE: None},
    "ownerReferences": dict.fromkeys(("apiVersion", "kind", "name", "uid", "controller")),
}
_CONTAINER: Fields = {
    "name": None,
    "restartPolicy": None,
    "resources": {"limits": None, "requests": None},
    "ports": {"name": None, "containerPort": None},
    "readinessProbe": {"httpGet": None},
}
_STATE: Fields = {
    "waiting": {"reason": None, "message": None},
    "running": {"startedAt": None},
    "terminated": {"exitCode": None, "reason": None, "message": None},
}
_CONTAINER_STATUS: Fields = {"name": None, "image": None, "ready": None, "state": _STATE, "lastState": _STATE}
_CONDITION: Fields = dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"))
READ: Mapping[str, Fields] = {
    "Pod": {
        "metadata": _OWNED,
        "spec": {
            "nodeName": None,
            "nodeSelector": None,
            "schedulingGates": None,
            "resourceClaims": dict.fromkeys(("resourceClaimName", "resourceClaimTemplateName")),
            "containers": _CONTAINER,
            "initContainers": _CONTAINER,
            "volumes": {
                "name": None,
                "configMap": {"name": None},
                "secret": {"secretName": None},
                "persistentVolumeClaim": {"claimName": None},
                "emptyDir": {"sizeLimit": None},
                "image": {"reference": None},
                "projected": {"sources": {"configMap": {"name": None}, "secret": {"name": None}}},
            },
        },
        "status": {
            "phase": None,
            "reason": None,
            "message": None,
            "podIP": None,
            "startTime": None,
            "conditions": _CONDITION,
            "containerStatuses": _CONTAINER_STATUS,
            "initContainerStatuses": _CONTAINER_STATUS,
        },
    },
    "ReplicaSet": {
        "metadata": {**_OWNED, "annotations": {REVISION: None}},
        "spec": {"replicas": None},
        "status": {"replicas": None, "conditions": _CONDITION},
    },
    NODE.name: {
        "metadata": dict.fromkeys(("name", "uid", "resourceVersion", "labels")),
        "spec": {"taints": None, "unschedulable": None},
        "status": {"allocatable": None},
    },
}
"""What is read of objects that others make, by kind. Of its own the operator compares everything."""


def slim(item: Object, kind: Kind) -> Object:
    """The object as it is kept: with its kind, which lists leave out, and without what nobody reads.

    Of managedFields only our entry is read, of an applied document not the copy that kubectl leaves in it.
    """
    named = {"apiVersion": kind.api_version, "kind": kind.name}
    if kind.name in READ:
        return {**named, **_only(item, READ[kind.name])}
    metadata = dict(item["metadata"])
    fields = metadata.pop("managedFields", None) or ()
    if kind is SERVICE:
        annotations = (metadata.get("annotations") or {}).items()
        metadata["annotations"] = {name: text for name, text in annotations if name != LAST_APPLIED}
    else:
        metadata["managedFields"] = [entry for entry in fields if entry.get("manager") == MANAGER]
    return {**named, **item, "metadata": metadata}


def _only(value: Any, fields: Fields | None) -> Any:
    if fields is None or value is None:
        return value
    if isinstance(value, list):
        return [_only(item, fields) for item in value]
    return {name: _only(value[name], below) for name, below in fields.items() if name in value}


def place_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name; no namespace for what has none."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class Kept:
    """One object in a store: compressed, since the dictionaries of a service's objects would take 200 KiB."""

    place: tuple[str, str]
    uid: str
    version: int
    key: Key | None
    """The service to which it belongs."""
    note: Note
    content: bytes | Object

    @property
    def item(self) -> Object:
        """The object: where it is compressed the reader's own, to do with as it likes."""
        if not isinstance(self.content, bytes):
            return self.content
        item: Object = json.loads(zlib.decompress(self.content))
        return item


class Store:
    """The objects of one kind, by the service to which each belongs. Belongs to the event loop, but for
    `keep`."""

    def __init__(
        self,
        kind: Kind,
        changed: Callable[[Key], None],
        belongs: Callable[[Object], Key | None] = key_of,
        note: Callable[[Object], Note] = lambda item: (),
        compress: bool = True,
    ) -> None:
        """note      what is asked of all objects at once, so that nobody has to read them all
        compress  not where few objects are read all the time"""
        self.kind = kind
        self._changed = changed
        self._belongs = belongs
        self._note = note
        self._compress = compress
        self._kept: dict[tuple[str, str], Kept] = {}
        self._names: dict[Key, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, namespace: str, name: str) -> Object | None:
        kept = self._kept.get((namespace, name))
        return kept.item if kept else None

    def items(self) -> list[Object]:
        return [kept.item for kept in self._kept.values()]

    def names(self, key: Key) -> tuple[str, ...]:
        """The names of the children of one service, in order."""
        return self._names.get(key, ())

    def of(self, key: Key) -> list[Object]:
        """The children of one service, by name."""
        return [self._kept[key[0], name].item for name in self.names(key)]

    def uids(self) -> dict[tuple[str, str], str]:
        return {place: kept.uid for place, kept in self._kept.items()}

    def notes(self) -> Iterator[tuple[tuple[str, str], Note]]:
        """The note of each object, with its place."""
        return ((place, kept.note) for place, kept in self._kept.items())

    def keep(self, item: Object) -> Kept:
        """What `take` takes, made in any thread."""
        item = slim(item, self.kind)
        namespace, name = place_of(item)
        key = self._belongs(item)
        return Kept(
            place=(sys.intern(namespace), name),
            uid=item["metadata"]["uid"],
            version=version(item),
            key=key and (sys.intern(key[0]), sys.intern(key[1])),
            note=self._note(item),
            # The fastest level: the others take as much again of time for a tenth of the bytes.
            content=zlib.compress(json.dumps(item).encode(), 1) if self._compress else item,
        )

    def learn(self, item: Object) -> None:
        """An object as an answer or an event shows it; an older one than ours is ignored."""
        self.take(self.keep(item))

    def take(self, new: Kept) -> None:
        """`learn`, of what `keep` has made."""
        known = self._kept.get(new.place)
        if known and known.uid == new.uid and new.version <= known.version:
            return
        self._forget(new.place)
        self._kept[new.place] = new
        if new.key:
            self._names[new.key] = tuple(sorted((*self.names(new.key), new.place[1])))
            self._changed(new.key)

    def drop(self, item: Object) -> None:
        """The object is gone, unless one of the same name has taken its place."""
        self.forget(place_of(item), item["metadata"]["uid"])

    def forget(self, place: tuple[str, str], uid: str) -> None:
        """`drop`, of the object with this uid."""
        known = self._kept.get(place)
        if known and known.uid == uid:
            self._forget(place)

    def replace(self, namespace: str | None, items: Iterable[Kept]) -> None:
        """A whole list, of one namespace or of all: what it does not hold is gone."""
        listed = {kept.place: kept for kept in items}
        for place in [place for place in self._kept if namespace in (None, place[0]) and place not in listed]:
            self._forget(place)
        for kept in listed.values():
            self.take(kept)

    def _forget(self, place: tuple[str, str]) -> None:
        known = self._kept.pop(place, None)
        if known is None or known.key is None:
            return
        names = tuple(name for name in self.names(known.key) if name != place[1])
        if names:
            self._names[known.key] = names
        else:
            del self._names[known.key]
        self._changed(known.key)


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
        items: list[Kept] = []
        since = ""
        for page in self._cluster.pages(self._path, self._selector):
            items += map(self._store.keep, page.get("items") or ())
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
            if kind == "DELETED":
                self._notify(self._store.drop, item)
            elif kind != "BOOKMARK":
                self._notify(self._store.take, self._store.keep(item))
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
