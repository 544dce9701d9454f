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

from slipway.metrics.operator import OPERATOR_METRICS
from slipway.sockets import everywhere

BACKLOG = 128
TOO_OLD = 300.0
ANSWERING = 20.0
"""The API server answers if it did so this many seconds ago: the Lease asks it every few."""
DEAF = 900.0
"""Seconds after which an outage may be our own: a start reads names, addresses and credentials anew."""
_DECLARED = {metric.name: metric for metric in OPERATOR_METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The operator at one moment; ages in seconds."""

    running_for: float
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
    """Why a restart would help; None where it would not. An API server that is away is no such reason for a
    while, nor what an outage left behind a minute ago."""
    if not vitals.watching:
        return "The thread that watches InferenceServices has ended."
    if (silence := min(vitals.answer_age, vitals.running_for)) > DEAF:
        return f"The API server has not answered for {silence:.0f} s: it may answer one that starts anew."
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


class Metrics(Collector):
    """Numbers for Prometheus, in a registry of their own: counted here, or read off the operator at each
    scrape."""

    def __init__(self, vitals: Callable[[], Vitals]) -> None:
        self._vitals = vitals
        self.registry = CollectorRegistry()
        self.registry.register(self)
        reconciles = _DECLARED["slipway_operator_reconciles_total"]
        seconds = _DECLARED["slipway_operator_reconcile_seconds"]
        self.reconciles = Counter(
            reconciles.name, reconciles.summary, reconciles.labels, registry=self.registry
        )
        self.seconds = Histogram(
            seconds.name, seconds.summary, buckets=seconds.buckets_for(0), registry=self.registry
        )

    def collect(self) -> Iterable[Metric]:
        vitals = self._vitals()
        for name, value in (
            ("active", float(vitals.active)),
            ("queue_depth", vitals.queue_depth),
            ("queue_oldest_seconds", vitals.queue_age),
            ("watch_silence_seconds", vitals.watch_age),
            ("resources", vitals.resources),
        ):
            yield _family(name, {(): value})
        yield _family("children", {(kind,): count for kind, count in sorted(vitals.children.items())})
        yield _family("unready", dict.fromkeys(vitals.unready, 1))
        calls = sorted(vitals.calls.items())
        yield _family("api_calls_total", {(method, str(status)): count for (method, status), count in calls})


def _family(name: str, samples: Mapping[tuple[str, ...], float]) -> Metric:
    """The declared metric `slipway_operator_NAME`, with a sample for each set of label values."""
    declared = _DECLARED[f"slipway_operator_{name}"]
    kind = CounterMetricFamily if declared.type == "counter" else GaugeMetricFamily
    family = kind(declared.name, declared.summary, labels=declared.labels)
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


class HealthServer:
    """The HTTP server of the three paths."""

    def __init__(self, port: int, vitals: Callable[[], Vitals], metrics: Metrics) -> None:
        self._vitals = vitals
        self._metrics = metrics
        self._runner: web.AppRunner | None = None
        self.port = port
        """The one to listen on; once started the one listened on: the system chooses where 0 is asked for."""

    async def start(self) -> None:
        """Listen on every address. Raises OSError where the port is taken."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._show_metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        for opened in everywhere(self.port, BACKLOG):
            await web.SockSite(self._runner, opened).start()
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
