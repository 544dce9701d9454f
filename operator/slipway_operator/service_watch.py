"""The InferenceServices: kopf watches them, from a thread and an event loop of its own. No other module
imports kopf; docs/design/operator.md says what it is for.

kopf ends for good at some errors of a watch, and on its way out cancels every task of its loop; apart from
ours it is simply started again. It tells no deletion that fell between two of its lists: `purge` finds
those.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import kopf

from slipway_operator.cluster import SERVICE, Cluster, Refused, Unreachable
from slipway_operator.informer import Store
from slipway_operator.settings import Settings
from slipway_operator.shapes import uid

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
LOOK_SECONDS = 5.0

log = logging.getLogger(__name__)


class Patience:
    """Seconds between attempts, without end: an API server that is away for hours is no reason to give up."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1, 2)
        while True:
            yield 5.0


class Watch:
    """Fills the store with InferenceServices for as long as it runs."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        settings: Settings,
        identity: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._settings = settings
        # kopf would make one of the user's name, which an arbitrary user id does not have.
        self._identity: Any = identity
        self._loop = loop
        self._begun = threading.Event()
        self._stop = threading.Event()
        self._ending = threading.Event()
        """What ends kopf, which may then begin again."""
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch; returns once kopf has ended, or after 5 s."""
        self._stop.set()
        self._ending.set()
        self._thread.join(5.0)

    def renew(self) -> None:
        """Have kopf begin again, which reads certificates only then."""
        self._ending.set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def begun(self) -> bool:
        """Whether kopf runs now."""
        return self._begun.is_set()

    def _run(self) -> None:
        while True:
            self._ending.clear()
            if self._stop.is_set():
                return
            if self._defined():
                try:
                    kopf.run(
                        registry=self._registry(),
                        settings=kopf_settings(),
                        standalone=True,
                        clusterwide=not self._settings.namespaces,
                        namespaces=self._settings.namespaces,
                        identity=self._identity,
                        ready_flag=self._begun,
                        stop_flag=self._ending,
                    )
                except Exception as problem:  # whatever it was, the next list mends it
                    log.warning("The watch of %s ended and starts again: %r", SERVICE.plural, problem)
                finally:
                    self._begun.clear()
            self._ending.wait(LOOK_SECONDS)

    def _defined(self) -> bool:
        """Whether the API server knows the resource: kopf looks for it only once, as it starts."""
        try:
            listed = self._cluster.call("GET", SERVICE.root)
        except Refused as problem:
            log.warning(
                "The API server has no %s in %s/%s (%s). Install the chart with crds.install, or apply "
                "crds/inferenceservices.slipway.dev.yaml; it is looked for again every %d s.",
                SERVICE.plural,
                SERVICE.group,
                SERVICE.version,
                problem,
                LOOK_SECONDS,
            )
            return False
        except Unreachable as problem:
            log.warning("The API server does not answer: %s", problem)
            return False
        return any(resource["name"] == SERVICE.plural for resource in listed["resources"])

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(kopf.login_via_client)

        @kopf.on.event(SERVICE.group, SERVICE.version, SERVICE.plural, registry=registry)
        async def seen(event: Any, **_: Any) -> None:
            item = event["object"]
            fresh = {
                "apiVersion": SERVICE.api_version,
                "kind": SERVICE.name,
                "metadata": item["metadata"],
                "spec": item.get("spec") or {},
                "status": item.get("status") or {},
            }
            if event["type"] == "DELETED":
                self._loop.call_soon_threadsafe(self._store.drop, fresh)
            else:
                self._loop.call_soon_threadsafe(self._store.take, self._store.keep(fresh))

        return registry

    async def purge(self) -> None:
        """Drop resources that the API server has no more. Raises Refused and Unreachable."""
        there: set[str] = set()
        known = self._store.uids()  # before the list: what comes meanwhile stays
        for scope in self._settings.scopes:
            there.update(await self._cluster.ask_for_all(SERVICE.path(scope), uid, METADATA_ONLY))
        for place, one in known.items():
            if one not in there:
                self._store.forget(place, one)


def configure_log(log_format: str) -> None:
    """Lines as kopf writes them, for the whole process: text or JSON."""
    # Its warnings are about signals, which are ours to take; its outages show in our own log.
    logging.getLogger("kopf").setLevel(logging.ERROR)
    kopf.configure(log_format=kopf.LogFormat.JSON if log_format == "json" else kopf.LogFormat.FULL)


def kopf_settings() -> kopf.OperatorSettings:
    """kopf as a watch and no more: no events posted, no discovery of new kinds, nothing kept on objects."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 540
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 100
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = Patience()
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 1.0
    return settings
