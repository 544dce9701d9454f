"""The serving profiles that services choose from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from slipway.service import InvalidService, ServiceSpec
from slipway.service.profile import PROFILE_KIND, ServingProfile, read_profile
from slipway_operator.cluster import PROFILE, Cluster
from slipway_operator.informer import Informer, Store, place_of


class Profiles:
    """Those of the cluster while they are followed, else those that the settings give."""

    def __init__(self, given: Mapping[str, ServingProfile], changed: Callable[[str], None]) -> None:
        """changed  called with the name of each profile that came, went or was edited"""
        self._given = given
        self._store = Store(PROFILE, lambda key: changed(key[1]), place_of)
        self._informer: Informer | None = None
        self._known = asyncio.Event()
        """Whether it is known where profiles are."""
        self._read: dict[str, tuple[str, ServingProfile]] = {}
        """By name, with the resource version that was read."""

    def follow(self, cluster: Cluster) -> None:
        """The cluster has the kind."""
        self._informer = Informer(cluster, self._store, None, asyncio.get_running_loop(), selector="")
        self._informer.start()
        self._known.set()

    def leave(self) -> None:
        """The cluster does not have it, or may not be asked."""
        if self._informer is not None:
            self._informer.stop()
            self._store.replace(None, [])
        self._informer = None
        self._known.set()

    async def chosen(self, spec: ServiceSpec) -> ServingProfile | None:
        """What spec.profile names; None where it names nothing. Waits until the profiles are known.

        Raises InvalidService for one that is not there or cannot be used.
        """
        if spec.profile is None:
            return None
        await self._known.wait()
        if self._informer is not None:
            await self._informer.synced.wait()
            found = self._of_cluster(spec.profile)
            names = [item["metadata"]["name"] for item in self._store.items()]
        else:
            found, names = self._given.get(spec.profile), [*self._given]
        if found is None:
            there = f"There are {', '.join(sorted(names))}." if names else "There is none at all."
            raise InvalidService(
                "spec.profile",
                f"there is no {PROFILE_KIND} {spec.profile}. {there} Create it, or correct the name.",
                reason="ProfileMissing",
            )
        return found

    def _of_cluster(self, name: str) -> ServingProfile | None:
        item = self._store.get("", name)
        if item is None:
            self._read.pop(name, None)
            return None
        version = str(item["metadata"]["resourceVersion"])
        if self._read.get(name, ("",))[0] != version:
            self._read[name] = version, read_profile(name, item.get("spec"))
        return self._read[name][1]
