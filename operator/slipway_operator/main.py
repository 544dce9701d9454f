"""The operator: its parts, wired together, until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import socket
import sys
import time
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from kubernetes.config.config_exception import ConfigException

from slipway_operator.cluster import (
    MADE,
    OPTIONAL,
    PROFILE,
    SEEN,
    SERVICE,
    Cluster,
    Object,
    Refused,
    Unreachable,
)
from slipway_operator.discovery import LOOK_EVERY, optional_kinds
from slipway_operator.events import Recorder
from slipway_operator.health import HealthServer, Metrics, Vitals, age
from slipway_operator.informer import Children, Key, Note, Store, place_of
from slipway_operator.lease import Lease
from slipway_operator.pace import Pace
from slipway_operator.profile_store import Profiles
from slipway_operator.queue import LONGEST_BACK_OFF, Queue
from slipway_operator.reconcile import NotApplied, Reconciler
from slipway_operator.service_watch import Watch, configure_log
from slipway_operator.settings import Settings, read_settings
from slipway_operator.unready import unready
from slipway_operator.writer import NotActive, Writer

WORKERS = 4
RESYNC_SECONDS = 600.0
RESYNC_SPREAD = 60.0
"""Keys of one resync are spread over this many seconds."""
LONGEST_WAIT_FOR_SERVER = 8.0
"""Seconds from one try to the next while the API server is away: no key is at fault, and all want it back."""

log = logging.getLogger("slipway_operator")


def noted(resource: Object) -> Note:
    """What is asked of all InferenceServices at once: the profile of each, and why it is not ready."""
    return resource["spec"].get("profile"), unready(resource)


class Operator:
    """One instance. Invariant: every write goes through the writer, which asks the Lease."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self.settings = settings
        self.cluster = cluster
        self.queue: Queue[Key] = Queue()
        self.resources = Store(SERVICE, self.queue.add, place_of, noted)
        self.children = Children(cluster, settings.scopes, self.queue.add)
        identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self.lease = Lease(cluster, settings.lease_namespace, settings.lease_name, identity, self.want_all)
        self.writer = Writer(cluster, self.lease.may_write)
        self.recorder = Recorder(self.writer, identity)
        self.profiles = Profiles(settings.profiles, self.want_services_of)
        self.pace = Pace(self.queue.add_first)
        self.reconciler = Reconciler(
            cluster,
            settings,
            self.resources,
            self.children,
            self.profiles,
            self.writer,
            self.recorder,
            self.pace,
        )
        self.watch = Watch(cluster, self.resources, settings, identity, asyncio.get_running_loop())
        cluster.trusted_again = self.watch.renew
        self.began_at = time.monotonic()
        self.metrics = Metrics(self.vitals)
        self.health = HealthServer(settings.health_port, self.vitals, self.metrics)

    def want_all(self, spread: float = 0.0) -> None:
        """Queue every resource, at moments spread over so many seconds."""
        for key, _ in self.resources.notes():
            self.queue.add(key, random.random() * spread)

    def want_services_of(self, profile: str) -> None:
        """Queue every resource that chooses this profile."""
        for key, (chosen, _) in self.resources.notes():
            if chosen == profile:
                self.queue.add(key)

    def vitals(self) -> Vitals:
        return Vitals(
            synced=self.children.all_synced,
            active=self.lease.may_write(),
            running_for=age(self.began_at),
            watching=self.watch.alive,
            begun=self.watch.begun,
            queue_depth=len(self.queue),
            queue_age=self.queue.oldest(),
            watch_age=age(self.children.heard_at()),
            answer_age=age(self.cluster.answered_at),
            outage_age=age(self.cluster.unanswered_at),
            resources=len(self.resources),
            unready=[(*key, why) for key, (_, why) in self.resources.notes() if why is not None],
            children={name: len(store) for name, store in self.children.stores.items()},
            calls=dict(self.cluster.calls),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; then finish the writes under way and give the Lease back."""
        for kind in (*MADE, *SEEN):
            self.children.follow(kind)
        self.watch.start()
        await self.health.start()
        log.info("Listening on port %d for /healthz, /readyz and /metrics.", self.health.port)
        loops: list[Coroutine[Any, Any, None]] = [
            self.lease.keep(),
            self.pace.keep(),
            self._discover(),
            self._resync(),
        ]
        tasks = [asyncio.create_task(loop) for loop in (*loops, *(self._work() for _ in range(WORKERS)))]
        ended = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {ended}:
                task.result()  # none of them ends: this raises what broke one
        finally:
            await self._end([ended, *tasks])

    async def _end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.writer.close()
        await self.recorder.write_counts()  # in the log: a successor does not wait for counts
        await self.lease.release()
        await asyncio.to_thread(self.watch.stop)
        await self.health.stop()

    async def _work(self) -> None:
        """Reconcile one key after another."""
        while True:
            key = await self.queue.take()
            await self.children.synced()
            # Where nothing differs nothing is awaited: the Lease and the probes must have their turn too.
            await asyncio.sleep(0)
            if not self.lease.held:
                self.queue.done(key)  # the one who takes the Lease queues everything
                continue
            began = time.monotonic()
            try:
                again = await self.reconciler.reconcile(key)
            except (Refused, Unreachable, NotActive, NotApplied) as problem:
                away = isinstance(problem, Unreachable | NotActive)
                wait = self.queue.failed(key, LONGEST_WAIT_FOR_SERVER if away else LONGEST_BACK_OFF)
                self.metrics.reconciles.labels("retry").inc()
                log.info("%s: again in %.1f s: %s", "/".join(key), wait, problem or type(problem).__name__)
            except Exception:
                # One resource that breaks us must not stop the others; the back-off keeps it rare.
                wait = self.queue.failed(key)
                self.metrics.reconciles.labels("failed").inc()
                log.exception("%s: again in %.1f s", "/".join(key), wait)
            else:
                self.queue.done(key)
                self.metrics.reconciles.labels("done").inc()
                if again is not None:
                    self.queue.add(key, again)
            self.metrics.seconds.observe(time.monotonic() - began)

    async def _discover(self) -> None:
        """Follow optional kinds as they come and go."""
        known: frozenset[str] | None = None
        while True:
            try:
                found = await optional_kinds(self.cluster)
            except (Refused, Unreachable) as problem:
                log.info("Discovery: %s", problem)
                await asyncio.sleep(LOOK_EVERY / 10)
                continue
            names = frozenset(kind.name for kind in found)
            if names != known:
                before = known or frozenset()
                of_cluster = PROFILE.name in names and not self.settings.namespaces
                if known is None or (PROFILE.name in names) != (PROFILE.name in before):
                    self.profiles.follow(self.cluster) if of_cluster else self.profiles.leave()
                for kind in OPTIONAL:
                    if kind.name in names - before:
                        self.children.follow(kind)
                    elif kind.name in before - names:
                        self.children.leave(kind)
                log.info("Optional kinds: %s", ", ".join(sorted(names)) or "none")
                known = self.reconciler.kinds = names
                self.want_all()
            await asyncio.sleep(LOOK_EVERY)

    async def _resync(self) -> None:
        """Compare everything now and then, whatever the events said."""
        while True:
            await asyncio.sleep(RESYNC_SECONDS)
            try:
                await self.watch.purge()
            except (Refused, Unreachable) as problem:
                log.info("Resync: %s", problem)
            self.reconciler.pod_events.looks.tidy()
            self.reconciler.loading.looks.tidy()
            self.reconciler.nodes.tidy()
            await self.recorder.tidy()
            self.want_all(RESYNC_SPREAD)


async def operate(settings: Settings) -> None:
    """Run one operator until SIGTERM or SIGINT. Raises ConfigException where no cluster is configured."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Operator(settings, Cluster()).run(stop)


def settings_of(arguments: Sequence[str] | None) -> Settings:
    """Exits with status 2 and a sentence where the command line or the file is at fault."""
    parser = argparse.ArgumentParser(
        prog="slipway-operator", description="Runs InferenceServices on Kubernetes."
    )
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="YAML, as the chart writes it; else the defaults"
    )
    file: Path | None = parser.parse_args(arguments).settings
    if file is None:
        return Settings()
    try:
        return read_settings(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"{file}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    settings = settings_of(arguments)
    configure_log(settings.log_format)
    try:
        asyncio.run(operate(settings))
    except ConfigException as error:
        print(
            f"slipway-operator: no cluster is configured: {error} Run it in a pod with a service account, "
            f"or set KUBECONFIG (now {os.environ.get('KUBECONFIG', 'unset')}).",
            file=sys.stderr,
        )
        return 2
    return 0
