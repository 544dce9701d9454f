"""/healthz, /readyz and /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

TOO_OLD = 300.0
ANSWERING = 20.0
"""The API server answers if it did so this many seconds ago: the Lease asks it every few."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The operator at one moment; ages in seconds."""

    synced: bool
    active: bool
    watching: bool
    """Whether the thread that watches InferenceServices lives."""
    begun: bool
    """Whether it watches: the kind is there, and nothing has broken the watch."""
    queue_depth: int
    queue_age: float
    watch_age: float
    """Since the most silent watch was last heard."""
    answer_age: float
    """Since the API server last answered."""
    outage_age: float
    """Since the API server last did not answer."""
    resources: int
    unready: Sequence[tuple[str, str, str]] = ()
    """Namespace, name and reason of each service that should serve and is not ready."""
    children: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Answers of the API server by method and status."""


def sick(vitals: Vitals) -> str | None:
    """Why a restart would help; None where it would not. An API server that is away is no such reason, nor
    what an outage left behind a minute ago."""
    if not vitals.watching:
        return "The thread that watches InferenceServices has ended."
    if vitals.answer_age > ANSWERING or vitals.outage_age < 60.0:
        return None
    if vitals.queue_age > TOO_OLD:
        return f"The oldest key has been in the queue for {vitals.queue_age:.0f} s."
    if vitals.watch_age > TOO_OLD:
        return f"One watch has been silent for {vitals.watch_age:.0f} s although the API server answers."
    return None


def unready(vitals: Vitals) -> str | None:
    """Why nothing can be done at the moment."""
    if vitals.answer_age > ANSWERING:
        return f"The API server has not answered for {vitals.answer_age:.0f} s."
    if not vitals.begun:
        return "InferenceServices are not watched yet; the log says why if this lasts."
    if not vitals.synced:
        return "The first lists of the children are not complete."
    return None


class Metrics:
    """Numbers for Prometheus, in a registry of their own."""

    def __init__(self, vitals: Callable[[], Vitals]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Live(vitals))
        self.reconciles = Counter(
            "slipway_operator_reconciles",
            "Reconciliations by outcome: done, retry (an error that a back-off mends) or failed.",
            ["outcome"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "slipway_operator_reconcile_seconds",
            "Duration of a reconciliation.",
            buckets=SECONDS,
            registry=self.registry,
        )


class _Live(Collector):
    """What is read off the operator at each scrape."""

    def __init__(self, vitals: Callable[[], Vitals]) -> None:
        self._vitals = vitals

    def collect(self) -> Iterable[Metric]:
        vitals = self._vitals()
        for name, meaning, value in (
            ("active", "1 while this instance holds the Lease.", float(vitals.active)),
            ("queue_depth", "Keys that wait for work or are worked on.", vitals.queue_depth),
            ("queue_oldest_seconds", "Age of the oldest of them.", vitals.queue_age),
            ("watch_silence_seconds", "Since the most silent watch was last heard.", vitals.watch_age),
            ("resources", "InferenceServices known.", vitals.resources),
        ):
            yield GaugeMetricFamily(f"slipway_operator_{name}", meaning, value=value)
        children = GaugeMetricFamily("slipway_operator_children", "Children known, by kind.", labels=["kind"])
        for kind, count in sorted(vitals.children.items()):
            children.add_metric([kind], count)
        yield children
        waiting = GaugeMetricFamily(
            "slipway_operator_unready",
            "1 for each InferenceService that should serve and whose condition Ready is not True.",
            labels=["resource_namespace", "resource", "reason"],
        )
        for labels in vitals.unready:
            waiting.add_metric(labels, 1)
        yield waiting
        calls = CounterMetricFamily(
            "slipway_operator_api_calls",
            "Calls of the API server by method and status; status 0 had no answer.",
            labels=["method", "status"],
        )
        for (method, status), count in sorted(vitals.calls.items()):
            calls.add_metric([method, str(status)], count)
        yield calls


class HealthServer:
    """The HTTP server of the three paths."""

    def __init__(self, port: int, vitals: Callable[[], Vitals], metrics: Metrics) -> None:
        self._port = port
        self._vitals = vitals
        self._metrics = metrics
        self._runner: web.AppRunner | None = None
        self.port = port
        """The one listened on, once started: the system chooses where 0 was asked for."""

    async def start(self) -> None:
        """Raises OSError where the port is taken."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._show_metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        # Every address of both families; a chosen port would differ between the two.
        site = web.TCPSite(self._runner, None if self._port else "0.0.0.0", self._port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        return _answer(sick(self._vitals()))

    async def _readyz(self, request: web.Request) -> web.Response:
        return _answer(unready(self._vitals()))

    async def _show_metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(problem: str | None) -> web.Response:
    return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")


def age(moment: float) -> float:
    """Seconds since a moment of the monotonic clock."""
    return time.monotonic() - moment
