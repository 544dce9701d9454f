"""One operator is active at a time: the Lease, and the certainty that the other one is idle.

The holder renews every few seconds. It refuses its own writes once its last renewal is so old that a write
still on its way could land after another one took over. A successor takes over when it has seen the same
record, unrenewed, for the whole duration by its own clock: no two clocks are compared.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable

from slipway_operator.cluster import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    LEASE,
    Cluster,
    Object,
    Refused,
    Unreachable,
)

DURATION = 28
RENEW_EVERY = 5.0
LOOK_EVERY = 3.0
SAFE_SECONDS = DURATION - (CONNECT_SECONDS + ANSWER_SECONDS + 2.0)
"""How old the last renewal may be for a write that starts now; the 2 s are for a sleeping process."""

log = logging.getLogger(__name__)


class Lease:
    """Held, or wished for, by one operator."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        acquired: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """acquired  called each time when the Lease becomes ours"""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._path = LEASE.path(namespace, name)
        self._acquired = acquired
        self._clock = clock
        self.identity = identity
        self._renewed_at: float | None = None
        """When the last successful renewal was sent; None while another holds the Lease, or nobody."""
        self._mine: Object | None = None
        """The record as our last renewal left it: the next one needs no look before it."""
        self._seen: tuple[str, float] | None = None
        """The record's resource version, and when it was first seen."""
        self._waits_for = ""
        """The holder of whom the log has told; a new one is told again."""

    @property
    def held(self) -> bool:
        """Whether the Lease is ours as far as we know, be it stale."""
        return self._renewed_at is not None

    def may_write(self) -> bool:
        """Whether a write that starts now lands before anyone else may hold the Lease."""
        return self._renewed_at is not None and self._clock() < self._renewed_at + SAFE_SECONDS

    async def keep(self) -> None:
        """Acquire and renew, for good."""
        while True:
            wait = LOOK_EVERY
            try:
                if await self._step():
                    wait = RENEW_EVERY
            except Unreachable as problem:
                log.debug("Lease %s/%s: %s", self._namespace, self._name, problem)
            except Refused as problem:
                level = logging.DEBUG if problem.status == 409 else logging.WARNING
                log.log(level, "Lease %s/%s: %s", self._namespace, self._name, problem)
            await asyncio.sleep(wait)

    async def release(self) -> None:
        """Let a successor begin at once. Best effort: an unreleased Lease expires."""
        if self._renewed_at is None:
            return
        self._renewed_at = None  # no write after this line
        try:
            record = await self._cluster.ask("GET", self._path)
            if record["spec"].get("holderIdentity") == self.identity:
                record["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._cluster.ask("PUT", self._path, None, record)
        except (Unreachable, Refused) as problem:
            log.info("Lease %s/%s stays until it expires: %s", self._namespace, self._name, problem)

    async def _step(self) -> bool:
        """One look; whether we hold the Lease after it."""
        sent = self._clock()
        record = self._mine or await self._cluster.find(self._path)
        self._mine = None  # after a failure it is looked up anew
        if record is None:
            blank = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": {"name": self._name}}
            path = LEASE.path(self._namespace)
            return self._hold(sent, await self._cluster.ask("POST", path, None, self._claimed(blank)))
        holder = record["spec"].get("holderIdentity") or ""
        if holder not in ("", self.identity) and not self._expired(record):
            self._stand_by(holder)
            return False
        return self._hold(sent, await self._cluster.ask("PUT", self._path, None, self._claimed(record)))

    def _stand_by(self, holder: str) -> None:
        if self._renewed_at is not None:
            log.warning("The Lease went to %s: standing by.", holder)
        elif holder != self._waits_for:
            log.info("%s holds the Lease: waiting until it gives it up or no longer renews it.", holder)
        self._waits_for = holder
        self._renewed_at = None

    def _expired(self, record: Object) -> bool:
        """Whether we have seen this very record for as long as its holder had asked for."""
        version = record["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
        return self._clock() >= self._seen[1] + (record["spec"].get("leaseDurationSeconds") or DURATION)

    def _claimed(self, record: Object) -> Object:
        """The record with us as its holder; its resource version makes the API server refuse a race."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = record.get("spec") or {}
        mine = old.get("holderIdentity") == self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": DURATION,
            "acquireTime": old.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": (old.get("leaseTransitions") or 0) + (0 if mine else 1),
        }
        return {**record, "spec": spec}

    def _hold(self, sent: float, record: Object) -> bool:
        first = self._renewed_at is None
        self._renewed_at = sent
        self._mine = record
        if first:
            log.info("Holding the Lease %s/%s as %s.", self._namespace, self._name, self.identity)
            self._acquired()
        return True
